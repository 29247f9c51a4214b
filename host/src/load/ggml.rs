//! Loading models for llama.cpp.

use std::sync::Arc;

use anyhow::Context;
use spinfer_gguf::{Header, ModelInfo, tokenizer};
use spinfer_llama::{ContextParams, Gpu, KvType, ModelParams, gpus};
use spinfer_protocol::{Backend, tensor};

use super::models::{LoadedModel, Models, card};
use crate::config::NnConfig;
use crate::machine;
use crate::models::catalogue::ModelFolder;
use crate::models::files::{self, VisibleModel};
use crate::models::placement;
use crate::models::stamps::Stamps;
use crate::models::trial;
use crate::nn::Graph;
use crate::nn::ggml::{GgmlGraph, Settings};
use crate::nn::registry::Backend as NnBackend;

/// The most bytes of logits that one step computes, which bounds how many positions may ask for them.
const STEP_LOGITS_BYTES: u64 = 64 << 20;

/// Loads a model. Gives it, and where it computes.
pub fn load(
    models: &Models,
    model: &ModelFolder,
    stamps: &mut Stamps,
) -> anyhow::Result<(LoadedModel, String)> {
    let (cache, config) = (&models.cache, &models.config);
    let weights = model.weights();
    let in_weights = || weights.display().to_string();
    let header = Header::read(&weights).with_context(in_weights)?;
    let info = ModelInfo::from_header(&header).with_context(in_weights)?;
    let facts = tokenizer::facts(&header).with_context(in_weights)?;
    let sha256 = stamps.digest(&weights)?;
    let tokenizer = files::tokenizer(cache, model, &header, &sha256).with_context(in_weights)?;
    let ignore_pre_tokenizer = tokenizer::has_unknown_pre(&header);
    trial::ensure_tried(cache, &weights, &sha256, ignore_pre_tokenizer)?;
    let gpus = gpus();
    let gpu_layers = placement::gpu_layers(&model.settings, config, &gpus)
        .with_context(|| format!("the model {:?}", model.id))?;
    let memory = match gpu_layers {
        placement::ALL_LAYERS => gpus.iter().map(|gpu| gpu.memory).sum(),
        _ => machine::memory(),
    };
    let row_length =
        models.row_length(model, info.context_length, info.kv_bytes_per_token(), memory)?;
    let graph = GgmlGraph::load(
        &weights,
        &ModelParams { gpu_layers, ignore_pre_tokenizer, ..ModelParams::default() },
        settings(config, row_length, facts.vocab_size),
        models.metrics.of(&model.id),
        models.arrivals.clone(),
    )
    .with_context(in_weights)?;
    let inputs = (Backend::Ggml, &tensor::OPTIONAL_INPUTS[..]);
    let card = card(model, facts, graph.limits(), inputs, &weights);
    let graph = Graph::new(NnBackend::Ggml(Arc::new(graph)), models.metrics.of(&model.id));
    let loaded = LoadedModel { graph, visible: VisibleModel { card, tokenizer } };
    Ok((loaded, place(gpu_layers, &gpus)))
}

/// Where a model computes, for people.
fn place(gpu_layers: u32, gpus: &[Gpu]) -> String {
    let names: Vec<_> =
        gpus.iter().map(|gpu| format!("{} ({})", gpu.name, gpu.description)).collect();
    match gpu_layers {
        0 => "CPU".to_owned(),
        placement::ALL_LAYERS => names.join(", "),
        layers => format!("CPU, and {layers} layers on {}", names.join(", ")),
    }
}

fn settings(config: &NnConfig, row_length: u32, vocab_size: u32) -> Settings {
    let row_bytes = u64::from(vocab_size).max(1) * 4;
    let outputs = (STEP_LOGITS_BYTES / row_bytes) as u32;
    Settings {
        row_length,
        context: ContextParams {
            cells: row_length.next_multiple_of(256) * config.sequences,
            sequences: config.sequences,
            batch: config.batch,
            micro_batch: config.batch,
            outputs: outputs.clamp(config.sequences, config.batch.max(config.sequences)),
            unified: false,
            threads: config.threads,
            kv_type: KvType::F16,
        },
        max_rows: config.max_rows,
        chunk: config.chunk.min(config.batch),
        prefix_cache: config.prefix_cache,
        longest_wait: config.longest_wait(),
        gather: config.gather(),
    }
}
