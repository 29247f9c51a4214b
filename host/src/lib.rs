//! The host: runs a Spin application's components, a fresh instance for each request, and gives them
//! `wasi:nn`.

pub mod app;
pub mod cache;
pub mod component;
pub mod config;
pub mod doctor;
pub mod http;
pub mod load;
pub mod machine;
pub mod models;
pub mod nn;
pub mod stock;
pub mod toml_file;
pub mod up;
