//! Reads GGUF files as far as serving needs it without a native library: the header
//! ([`Header`]), the model's shape ([`ModelInfo`]), and its tokenizer ([`tokenizer`]).
//!
//! A damaged or odd file makes llama.cpp abort the process, so files come through here first; what
//! is refused here is refused with a sentence for the person who put the file there. The file's name
//! is not in it: callers put it in front. This crate never reads tensor data, and it knows nothing
//! of llama.cpp's library.

mod header;
mod model;
mod source;
mod tensor;
pub mod tokenizer;
mod value;
pub mod write;

pub use header::{Header, HeaderError, WrongType};
pub use model::{ModelError, ModelInfo};
pub use tensor::{Block, TensorInfo, TensorType};
pub use tokenizer::{Derived, TokenizerError, TokenizerFacts};
pub use value::{Array, Strings, Value, ValueType};
