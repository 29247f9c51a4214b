//! `wasi:nn` for components: [`wit`] translates between the interface and plain Rust, [`registry`]
//! knows the models by name and who may use them, [`convention`] reads the tensors of the causal-LM
//! convention, the backends compute ([`ggml`], [`openvino`]), [`outputs`] is what they bring, [`arrivals`] are those who will ask them soon, and
//! [`metrics`] says how they fare.

pub mod arrivals;
pub mod convention;
pub mod error;
pub mod ggml;
pub mod metrics;
pub mod openvino;
mod outputs;
pub mod registry;
pub mod tensor;
pub mod wit;

pub use arrivals::{Arrival, Arrivals};
pub use error::{NnError, NnErrorCode};
pub use registry::{ExecutionContext, Graph, Registry};
pub use tensor::{Element, NamedTensor, Tensor};
