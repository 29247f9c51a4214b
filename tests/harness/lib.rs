//! What tests share: where the models are, the running server, and a client for it.

pub mod client;
pub mod models;
pub mod reference;
pub mod server;
