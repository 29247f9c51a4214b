//! Guest bindings of `wasi:nn@0.2.0-rc-2024-10-28` for components, with a thin layer over them:
//! tensors made from slices and read as slices, and errors that are values.
//!
//! The raw bindings are in [`bindings`]. Everything compiles on native targets too, so that crates
//! which use this one can be tested there; a call that reaches the host panics outside Wasm.
//!
//! ```no_run
//! # fn main() -> Result<(), wasi_nn::Error> {
//! let graph = wasi_nn::Graph::by_name("smollm2")?;
//! let mut context = graph.execution_context()?;
//! let ids = wasi_nn::Tensor::from_i64(&[1, 3], &[504, 3575, 282]);
//! let outputs = context.compute(vec![("input_ids", ids)])?;
//! let logits = outputs.get("logits").expect("named so by the convention");
//! let values = logits.to_f32()?;
//! # Ok(())
//! # }
//! ```

mod error;
mod graph;
mod tensor;

pub use error::{Error, ErrorCode};
pub use graph::{ExecutionContext, Graph, Outputs};
pub use tensor::{Tensor, TensorType};

/// What `wit-bindgen` generates from the WIT, unchanged.
#[allow(missing_docs)]
pub mod bindings {
    wit_bindgen::generate!({
        path: "../wit/wasi-nn.wit",
        world: "ml",
        generate_all,
    });
}
