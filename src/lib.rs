//! OpenAI-compatible text completions as a Spin HTTP component over wasi-nn.
//!
//! A request goes through the modules in this order:
//!
//! * [`http`]: which endpoint a method and path mean, and what a request's body must look like;
//! * [`request`]: the body becomes a [`CompletionRequest`](request::CompletionRequest), whose every
//!   value is in range;
//! * [`settings`]: what the operator has set;
//! * [`models`]: the model that it names, with its [`tokenizer`];
//! * [`service`]: what each endpoint does;
//! * [`generation`]: prompts go into an execution context, tokens come out;
//! * [`sampling`]: one row of logits becomes one token;
//! * [`answer`]: tokens become JSON, or server-sent events.
//!
//! [`openapi`] has the document that describes all of it.
//!
//! All of this is plain Rust, tested natively. `wasi` is the edge: it alone knows WASI, the SDK and
//! wasi-nn, and it holds no decisions.

pub mod answer;
pub mod generation;
pub mod http;
pub mod models;
pub mod openapi;
pub mod request;
pub mod sampling;
pub mod service;
pub mod settings;
pub mod tokenizer;

#[cfg(target_family = "wasm")]
mod wasi;

#[cfg(test)]
mod testing;
