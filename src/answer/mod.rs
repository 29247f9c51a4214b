//! The bodies of answers.
//!
//! A whole completion and a stream's chunks are the same object; both are made from the same deltas
//! ([`crate::generation::Delta`]), so the joined stream equals the whole answer.

mod completion;
mod logprobs;
mod models;
mod stream;
mod tokens;

use serde::Serialize;

pub use completion::{Collector, Head};
pub use models::{model, models, providers};
pub use stream::{ByteSink, Events};
pub use tokens::{detokenized, tokenized, tokenizer_info};

/// Any value as JSON.
fn to_json(value: &impl Serialize) -> String {
    // Strings, numbers and sequences of them: nothing here can fail to serialize.
    serde_json::to_string(value).expect("plain values always serialize")
}

/// The body of `GET /v1/health`.
pub fn health() -> String {
    to_json(&serde_json::json!({"status": "OK"}))
}

/// The body of `GET /v1/version`.
pub fn version() -> String {
    to_json(&serde_json::json!({"version": env!("CARGO_PKG_VERSION")}))
}
