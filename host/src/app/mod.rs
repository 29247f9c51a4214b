//! The application: what `spin.toml` says, and the values of its variables.

mod manifest;
mod template;
mod variables;

pub use manifest::{App, Component, Route};
pub use variables::VariableSources;
