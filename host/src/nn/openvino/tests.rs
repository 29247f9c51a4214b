//! The backend with the real default model, through the convention.

use spinfer_tests::models;
use spinfer_tests::reference::{Reference, log_softmax};

use super::*;
use crate::nn::metrics::NnMetrics;
use crate::nn::{Element, NnErrorCode};

const PROMPTS: [&str; 4] = [
    "The history of the railway begins with wagonways in the mines of Europe, where",
    "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n",
    "Q: What is photosynthesis?\nA:",
    "La capitale de l'Italie est",
];

/// Tokens of each text whose logits are compared.
const LENGTH: usize = 128;

fn graph() -> Arc<OpenvinoGraph> {
    library::load(None).expect("`cargo xtask test` brings OpenVINO, and says where it is");
    let folder = models::folder().join("smollm2-135m-instruct-openvino");
    let settings = Settings {
        device: Device::Cpu,
        threads: 2,
        streams: 1,
        kv_precision: KvPrecision::F32,
        row_length: 512,
        sequences: 4,
        max_rows: 4,
        // Texts go in several passes.
        chunk: 48,
        longest_wait: Duration::from_secs(60),
    };
    let metrics = NnMetrics::register(&prometheus::Registry::new()).unwrap().of("test");
    let (xml, bin) = (folder.join("openvino_model.xml"), folder.join("openvino_model.bin"));
    Arc::new(OpenvinoGraph::load(&xml, &bin, settings, metrics).expect("the model loads"))
}

fn i64s(dimensions: &[usize], values: &[i64]) -> Tensor {
    let dimensions = dimensions.iter().map(|&size| size as u32).collect();
    Tensor::new(dimensions, Element::I64, bytemuck::cast_slice(values).to_vec())
}

/// One row's tokens; the logits after each.
async fn every_logits(
    context: &mut OpenvinoContext,
    ids: &[i32],
) -> Result<Vec<Vec<f32>>, NnError> {
    let ids: Vec<i64> = ids.iter().map(|&id| i64::from(id)).collect();
    let (input, keep) = (i64s(&[1, ids.len()], &ids), i64s(&[1], &[ids.len() as i64]));
    let inputs = [("input_ids".to_owned(), &input), ("logits_to_keep".to_owned(), &keep)];
    let (name, logits) = context.compute(&inputs).await?.remove(0);
    assert_eq!(name, "logits");
    let (floats, _) = logits.data.as_chunks::<4>();
    let values: Vec<f32> = floats.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    Ok(values.chunks(logits.dimensions[2] as usize).map(<[f32]>::to_vec).collect())
}

/// How much is lost by taking `found` for `expected`, in nats.
fn divergence(expected: &[f32], found: &[f32]) -> f64 {
    let (expected, found) = (log_softmax(expected), log_softmax(found));
    expected.iter().zip(&found).map(|(p, q)| p.exp() * (p - q)).sum()
}

/// Against llama.cpp with the same weights, each in f32, and a KV cache of f32.
#[tokio::test]
async fn distributions_are_those_of_single_precision() {
    let graph = graph();
    let reference = Reference::single_precision();
    let (mut sum, mut most, mut moved, mut positions) = (0.0, 0.0f64, 0.0f32, 0);
    for prompt in PROMPTS {
        let mut ids = reference.model.tokenize(prompt, false, true).unwrap();
        ids.extend(reference.forced(&ids, LENGTH));
        let expected = reference.every_logits(&ids);
        let found = every_logits(&mut graph.init_context(None), &ids).await.unwrap();
        assert_eq!(found.len(), expected.len());
        for (expected, found) in expected.iter().zip(&found) {
            let divergence = divergence(expected, found);
            (sum, most, positions) = (sum + divergence, most.max(divergence), positions + 1);
            let differences = expected.iter().zip(found).map(|(a, b)| (a - b).abs());
            moved = differences.fold(moved, f32::max);
        }
    }
    assert_eq!(positions, PROMPTS.len() * LENGTH);
    let mean = sum / positions as f64;
    println!(
        "KL to single precision over {positions} positions: {mean:.1e} on average, {most:.1e} at most; logits \
         differ by up to {moved:.1e}"
    );
    assert!(mean <= 1e-3, "{mean}");
    assert!(moved < 0.1, "{moved}");
}

#[tokio::test]
async fn rewinding_is_refused_and_costs_nothing() {
    let graph = graph();
    let mut context = graph.init_context(None);
    every_logits(&mut context, &[504, 3575, 282]).await.unwrap();
    let (input, back) = (i64s(&[1, 1], &[4649]), i64s(&[1, 1], &[1]));
    let inputs = [("input_ids".to_owned(), &input), ("position_ids".to_owned(), &back)];
    let refused = context.compute(&inputs).await.unwrap_err();
    assert_eq!(refused.code, NnErrorCode::UnsupportedOperation, "{refused:?}");
    let outside = every_logits(&mut context, &[49_152]).await.unwrap_err();
    assert_eq!(outside.code, NnErrorCode::InvalidArgument, "{outside:?}");
    // The row goes on as if nothing had been asked.
    let next = every_logits(&mut context, &[4649]).await.unwrap();
    let whole = every_logits(&mut graph.init_context(None), &[504, 3575, 282, 4649]).await.unwrap();
    let moved = next[0].iter().zip(&whole[3]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(moved < 0.01, "{moved}");
}

#[tokio::test]
async fn contexts_at_the_same_time_are_what_each_is_alone() {
    let graph = graph();
    let texts = [vec![504, 3575, 282], vec![1, 2, 3, 4, 5, 6, 7], vec![42]];
    let mut alone = Vec::new();
    for ids in &texts {
        alone.push(every_logits(&mut graph.init_context(None), ids).await.unwrap());
    }
    let tasks = texts.map(|ids| {
        let graph = graph.clone();
        tokio::spawn(async move { every_logits(&mut graph.init_context(None), &ids).await })
    });
    for (task, alone) in tasks.into_iter().zip(alone) {
        assert_eq!(task.await.unwrap().unwrap(), alone);
    }
}
