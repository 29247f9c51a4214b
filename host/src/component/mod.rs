//! Components: how they are put together ([`compose`]), compiled and pre-initialised ([`snapshot`]), and
//! what an instance is given ([`state`], [`variables`], [`outbound`]) and refused ([`denied`]).

pub mod compose;
pub mod denied;
pub mod engine;
pub mod guest_log;
pub mod outbound;
pub mod snapshot;
pub mod state;
pub mod variables;
