//! HTTP: connections ([`server`]); what happens to a request before and after its instance
//! ([`service`]); who may ask ([`access`]); what is noted of a request ([`in_flight`]); the instance
//! itself ([`worker`]); the answer's way back ([`body`]); what is left of a request that nobody reads
//! ([`drain`]); clients that take too long ([`patience`]); TLS ([`tls`]); the headers by which components
//! know their routes ([`spin_headers`]); and how all of that fares ([`metrics`]).

pub mod access;
pub mod body;
pub mod drain;
pub mod in_flight;
pub mod metrics;
pub mod patience;
pub mod server;
pub mod service;
pub mod spin_headers;
pub mod tls;
pub mod worker;
