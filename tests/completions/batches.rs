//! Many rows: prompts × choices, in waves, with the prompt computed once.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use spinfer_tests::server::{Backend, Server, Setup, backend};

use crate::{MODEL, PROMPTS, SERVER, alone, cached, greedy, prefills, with};

fn texts(server: &Server, body: &Value) -> Vec<String> {
    let answer = server.complete(body);
    assert_eq!(answer.status, 200, "{}", answer.text);
    let json = answer.json();
    let choices = json["choices"].as_array().unwrap();
    for (at, choice) in choices.iter().enumerate() {
        assert_eq!(choice["index"], at);
    }
    choices.iter().map(|choice| choice["text"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_hundred_and_twenty_eight_choices_of_one_prompt() {
    let _alone = alone();
    let body = with(&greedy("The capital of France is", 3), json!({"n": 128}));
    let all = texts(&SERVER, &body);
    assert_eq!(all.len(), 128);
    let alone = SERVER.complete(&greedy("The capital of France is", 3)).completion();
    assert!(all.iter().all(|text| *text == alone), "greedy choices are all the same");
    let sampled = json!({"n": 128, "temperature": 2, "seed": 9});
    let mut all = texts(&SERVER, &with(&body, sampled));
    all.sort();
    all.dedup();
    assert!(all.len() > 100, "sampled ones differ: {}", all.len());
}

#[test]
fn thirty_two_prompts_of_unequal_length_with_two_choices_each() {
    let _alone = alone();
    let prompts: Vec<String> = (0..32)
        .map(|at| format!("{}{at} ", PROMPTS[at % PROMPTS.len()].repeat(at % 5 + 1)))
        .collect();
    let body = json!({
        "model": MODEL, "prompt": prompts, "n": 2, "max_tokens": 6, "temperature": 0,
    });
    let all = texts(&SERVER, &body);
    assert_eq!(all.len(), 64);
    for (at, prompt) in prompts.iter().enumerate() {
        assert_eq!(all[2 * at], all[2 * at + 1]);
        // Ragged rows are the same sequences, in another batch.
        if at % 8 == 0 {
            assert_eq!(all[2 * at], SERVER.complete(&greedy(prompt, 6)).completion(), "{prompt:?}");
        }
    }
    let usage = SERVER.complete(&body).json()["usage"].clone();
    let counted: usize = prompts
        .iter()
        .map(|prompt| {
            let body = json!({"prompt": prompt}).to_string();
            let answer = SERVER.post("/tokenize", "application/json", body.as_bytes());
            answer.json()["count"].as_u64().unwrap() as usize
        })
        .sum();
    assert_eq!(usage["prompt_tokens"], counted, "each prompt once");
}

/// The tokens that the backend computes for a request.
fn computed(caller: &str, body: &Value) -> u64 {
    let count = || {
        SERVER.metric("spinfer_prefill_tokens_total")
            + SERVER.metric("vllm:generation_tokens_total")
    };
    let before = count();
    assert_eq!(SERVER.complete_as(caller, body).status, 200);
    count() - before
}

#[test]
fn eight_choices_cost_one_prefill() {
    let _alone = alone();
    let ids: Vec<u32> = (0..1000).map(|at| 1000 + at % 97).collect();
    let base = json!({"model": MODEL, "prompt": ids, "max_tokens": 4, "ignore_eos": true});
    let cost = |caller: &str, fields: Value| computed(caller, &with(&base, fields));
    // The last token of each choice is never computed.
    assert_eq!(cost("first", json!({"n": 8})), 1000 + 8 * 3);
    assert_eq!(cost("second", json!({"n": 2, "best_of": 8})), 1000 + 8 * 3);
    // More choices than rows: the prompt is still there for the next wave, if the backend keeps any.
    assert_eq!(cost("third", json!({"n": 40})), prefills(3) * 1000 + 40 * 3);
    // Scoring and generating together compute each token once, too.
    assert_eq!(cost("fourth", json!({"n": 2, "echo": true, "logprobs": 0})), 1000 + 2 * 3);
}

/// A repeated prompt costs its last token; what its scores need is computed in any case.
#[test]
fn a_repeated_prompt_is_computed_once() {
    let _alone = alone();
    let ids: Vec<u32> = (0..500).map(|at| 20_000 + at % 89).collect();
    let body = json!({
        "model": MODEL, "prompt": ids, "max_tokens": 4, "ignore_eos": true, "temperature": 0,
    });
    let details = |answer: &Value| answer["usage"]["prompt_tokens_details"].clone();
    let first = SERVER.complete_as("someone", &body).json();
    assert_eq!(details(&first), cached(0));
    let prompt = match backend() {
        Backend::Ggml => 1,
        Backend::Openvino => 500,
    };
    assert_eq!(computed("someone", &body), prompt + 3);
    let again = SERVER.complete_as("someone", &body).json();
    assert_eq!(details(&again), cached(499));
    assert_eq!(again["usage"]["prompt_tokens"], 500, "they count all the same");
    let scored = with(&body, json!({"echo": true, "logprobs": 0}));
    assert_eq!(details(&SERVER.complete_as("someone", &scored).json()), cached(0));
    // Another caller has none of it.
    let other = SERVER.complete_as("someone else", &body).json();
    assert_eq!(details(&other), cached(0));
    assert_eq!(other["choices"], first["choices"]);
    assert_eq!(details(&SERVER.complete_as("someone else", &body).json()), cached(499));
}

#[test]
fn a_server_without_the_cache_computes_everything() {
    let _alone = alone();
    let setup = Setup { nn: "prefix_cache = false".into(), ..Setup::default() };
    let server = Server::start(&setup);
    let body = with(&greedy(&PROMPTS[..4].join("\n"), 4), json!({"n": 2}));
    let ask = || server.complete_as("someone", &body).json();
    let (first, again) = (ask(), ask());
    assert_eq!(first["choices"], again["choices"]);
    for answer in [&first, &again] {
        assert_eq!(answer["usage"]["prompt_tokens_details"], cached(0));
    }
    let tokens = first["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(server.metric("spinfer_prefill_tokens_total"), 2 * tokens);
}

/// How many bytes a server of its own holds at most while it answers each request, above what it held
/// before: the least of several times, since memory that is touched for the first time stays.
fn growths(model: &str, bodies: &[Value]) -> Vec<u64> {
    let setup = Setup { ai_models: vec![model.into()], ..Setup::default() };
    let server = Server::start(&setup);
    let process = PathBuf::from(format!("/proc/{}", server.pid()));
    bodies
        .iter()
        .map(|body| {
            let once = |_| {
                // From here on the kernel counts the highest resident size anew (proc(5)).
                fs::write(process.join("clear_refs"), "5").expect("a process of this user's");
                let before = server.memory().resident;
                let answer = server.complete(&with(body, json!({"model": model})));
                assert_eq!(answer.status, 200, "{}", answer.text);
                server.memory().peak.saturating_sub(before)
            };
            (0..3).map(once).min().expect("three times")
        })
        .collect()
}

/// The same requests, over vocabularies of 49k and 262k: what they take beside the model may differ by
/// the logits of their rows, once in the host and once in the component, and by no more.
#[test]
fn a_large_vocabulary_takes_no_more_than_its_rows_of_logits() {
    if backend() != Backend::Ggml {
        println!("skipped: the model with the large vocabulary has weights for llama.cpp alone");
        return;
    }
    let _alone = alone();
    const ROWS: u64 = 12;
    /// What one instance's page tables, stacks and allocators may differ by.
    const NOISE: u64 = 8 << 20;
    let one = json!({"prompt": "The capital of France is", "max_tokens": 3, "ignore_eos": true});
    let text = "a b c d e f g h ".repeat(20);
    let bodies = [
        // One row, and all rows of a context, whose whole logits are read; then more, in waves, of one
        // prompt and of many.
        one.clone(),
        with(&one, json!({"n": ROWS})),
        with(&one, json!({"n": 4 * ROWS})),
        with(&one, json!({"prompt": vec!["The capital of France is"; 4 * ROWS as usize]})),
        // Thousands of positions, which are reduced in the host.
        with(&one, json!({"prompt": vec![text; 16], "echo": true, "logprobs": 5})),
    ];
    let small = growths(MODEL, &bodies);
    let large = growths("gemma-3-270m", &bodies);
    let mib = |bytes: &[u64]| bytes.iter().map(|bytes| bytes >> 20).collect::<Vec<_>>();
    let logits = ROWS * (262_144 - 49_152) * 4;
    println!("growth in MiB: {:?} and {:?}", mib(&small), mib(&large));
    println!("{ROWS} rows of logits are {} MiB more", logits >> 20);
    for (small, large) in small.iter().zip(&large) {
        assert!(*large <= small + 2 * logits + NOISE, "{large} is over {small}");
    }
}
