//! Components: how they are compiled and pre-initialised ([`snapshot`]), and what an instance is
//! given ([`state`], [`variables`]).

pub mod engine;
pub mod guest_log;
pub mod snapshot;
pub mod state;
pub mod variables;
