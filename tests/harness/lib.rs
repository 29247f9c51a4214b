//! What tests share: where the models are, the running server and other programs, and a client.

pub mod client;
pub mod load;
pub mod measure;
pub mod models;
pub mod process;
pub mod reference;
pub mod server;
