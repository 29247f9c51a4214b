//! HTTP: connections ([`server`]), what happens to a request before and after its instance
//! ([`service`]), who may ask ([`access`]), the instance itself ([`worker`]), and the answer's way
//! back ([`body`]).

pub mod access;
pub mod body;
pub mod server;
pub mod service;
pub mod worker;
