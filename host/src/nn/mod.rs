//! `wasi:nn` for components: [`wit`] translates between the interface and plain Rust, [`registry`]
//! knows the models by name and who may use them, [`convention`] reads the tensors of the causal-LM
//! convention, the backends compute ([`ggml`]), and [`metrics`] says how they fare.

pub mod convention;
pub mod error;
pub mod ggml;
pub mod metrics;
pub mod registry;
pub mod tensor;
pub mod wit;

pub use error::{NnError, NnErrorCode};
pub use registry::{ExecutionContext, Graph, Registry};
pub use tensor::{Element, NamedTensor, Tensor};
