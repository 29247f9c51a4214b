//! `POST /v1/completions` and what is around it, against the running server with the real model.

mod answers;
mod around;
mod batches;
mod fields;
mod gaps;
mod leaving;
mod logprobs;
mod refusals;

use std::sync::{LazyLock, Mutex};

use serde_json::{Value, json};
use spinfer_tests::server::{Backend, Server, Setup, backend};

const MODEL: &str = "smollm2-135m-instruct";

/// One server for most tests.
static SERVER: LazyLock<Server> = LazyLock::new(|| Server::start(&Setup::default()));

/// Tests that compare numbers of the server's metrics, or answers that must be computed alone, hold
/// this.
static ALONE: Mutex<()> = Mutex::new(());

const PROMPTS: [&str; 24] = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n",
    "1, 1, 2, 3, 5, 8,",
    "Q: What is photosynthesis?\nA:",
    "<|im_start|>user\nWrite a haiku about rain.<|im_end|>\n<|im_start|>assistant\n",
    "La capitale de l'Italie est",
    "日本の首都は",
    "مرحبا",
    "SELECT name FROM users WHERE",
    "The quick brown fox jumps over the lazy dog. The quick brown fox",
    "{\"name\": \"Ada\", \"age\":",
    "Dear Sir or Madam,\n\nI am writing to",
    "# Introduction\n\nThis paper presents",
    "In 1969, humans first",
    "   leading spaces and\ttabs",
    "🙂🙃🙂🙃🙂",
    "fn main() {\n    println!(",
    "A",
    "\n\n\n",
    "The three primary colors are red,",
    "To make bread you need flour, water,",
    "Shakespeare wrote \"To be, or not to be",
    "2 + 2 = 4\n3 + 3 = 6\n4 + 4 =",
];

fn greedy(prompt: &str, max_tokens: usize) -> Value {
    json!({"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0})
}

/// By how much the backend's logits may differ from the reference's: llama.cpp's not at all; OpenVINO's in what
/// single precision rounds, 30 layers deep: 2,000 log-probabilities differ by up to 0.0132.
fn tolerance() -> f32 {
    match backend() {
        Backend::Ggml => 0.0,
        Backend::Openvino => 1e-2,
    }
}

/// Of how many waves each computes its prompts anew.
fn prefills(waves: u64) -> u64 {
    match backend() {
        Backend::Ggml => 1,
        // Its rows can't be cut back to their prompts.
        Backend::Openvino => waves,
    }
}

/// `usage.prompt_tokens_details` where so many tokens are there already: null where nothing is kept.
fn cached(tokens: u64) -> Value {
    match backend() {
        Backend::Ggml => json!({"cached_tokens": tokens}),
        Backend::Openvino => Value::Null,
    }
}

fn alone() -> impl Drop {
    ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn error(body: &Value) -> (u16, Value) {
    let answer = SERVER.complete(body);
    let json = answer.json();
    let keys: Vec<_> = json["error"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(keys, ["code", "message", "param", "type"], "{json}");
    assert_eq!(answer.header("content-type"), "application/json");
    (answer.status, json["error"].clone())
}

/// A greedy request with more fields, or others.
fn with(base: &Value, fields: Value) -> Value {
    let mut body = base.clone();
    let (Some(body_fields), Value::Object(fields)) = (body.as_object_mut(), fields) else {
        panic!("requests are objects");
    };
    body_fields.extend(fields);
    body
}
