//! The smallest safe wrapper over llama.cpp that serving completions needs.
//!
//! All `unsafe` of the GGML backend is in this crate, and what can make llama.cpp abort or write out
//! of bounds when its caller errs (sequence ids, batch sizes, token ids, partial copies) is checked
//! here. It knows nothing of requests, wasi-nn or scheduling, and it does not judge files: a damaged
//! GGUF can still abort the process in [`Model::load`] (`spinfer-gguf` checks headers first).

mod batch;
mod context;
mod gpu;
mod log;
mod model;
mod quantize;
mod vocab;

pub use batch::Batch;
pub use context::{Context, ContextParams, DecodeError, KvType};
pub use gpu::{GPU_BACKENDS, Gpu, gpus};
pub use model::{LoadError, Model, ModelParams};
pub use quantize::{Quantization, quantize};
pub use vocab::TokenizeError;

/// A token id as llama.cpp has it; valid ones are in `0..vocab_size`.
pub type Token = i32;

/// The number of a sequence in a context's memory, in `0..n_seq_max`.
pub type SequenceId = i32;

/// llama.cpp's process-wide state.
pub struct Backend;

impl Backend {
    /// Makes llama.cpp ready and sends its log to `tracing`. Idempotent; [`Model::load`] calls it.
    pub fn init() {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| {
            log::install();
            // SAFETY: called once, before any other function of the library that needs it.
            unsafe { llama_cpp_sys_2::llama_backend_init() };
        });
    }
}
