//! Components: how they are compiled and pre-initialised ([`snapshot`]), and what an instance is
//! given ([`state`], [`variables`], [`outbound`]).

pub mod engine;
pub mod guest_log;
pub mod outbound;
pub mod snapshot;
pub mod state;
pub mod variables;
