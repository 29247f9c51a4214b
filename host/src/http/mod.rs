//! HTTP: connections ([`server`]), what happens to a request before and after its instance
//! ([`service`]), the instance itself ([`worker`]), and the answer's way back ([`body`]).

pub mod body;
pub mod server;
pub mod service;
pub mod worker;
