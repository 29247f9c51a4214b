//! HTTP: connections ([`server`]), what happens to a request before and after its instance
//! ([`service`]), who may ask ([`access`]), the instance itself ([`worker`]), the answer's way
//! back ([`body`]), and what is left of a request that nobody reads ([`drain`]), and clients that
//! take too long ([`patience`]).

pub mod access;
pub mod body;
pub mod drain;
pub mod patience;
pub mod server;
pub mod service;
pub mod worker;
