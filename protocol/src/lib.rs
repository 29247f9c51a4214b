//! What the component and the host agree on, and nothing else: the error envelope that every
//! answer with an error carries ([`ApiError`]), the facts about a model that the host derives and
//! the component reads ([`ModelCard`], the file `model.json`), the names of the tensors that pass
//! through wasi-nn ([`tensor`]), the memory of stateful models ([`columns`]), whose web pages may read answers ([`AllowedOrigins`]), and who may ask
//! ([`ApiKeys`]).
//!
//! This crate knows no HTTP library, no WIT, no WASI and no I/O.

pub mod columns;
mod cors;
mod error;
mod keys;
mod model;
pub mod tensor;

pub use cors::{AllowedOrigins, is_loopback};
pub use error::{ApiError, ErrorKind};
pub use keys::{ApiKeys, OPEN_PATHS};
pub use model::{Backend, FimTokens, ModelCard};
