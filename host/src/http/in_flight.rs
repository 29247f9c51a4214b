//! A request in flight: what is noted of it, its place at the gate, and the line that the log gets.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use http::Method;
use http::header::CONTENT_LENGTH;
use tokio::sync::OwnedSemaphorePermit;

use super::metrics::HttpMetrics;
use crate::nn::metrics::observe;
use crate::nn::wit::ComputeObserver;

/// When things happened to a request.
pub struct Timings {
    received: Instant,
    instantiated: OnceLock<Instant>,
    first_compute: OnceLock<Instant>,
    /// Calls of `compute` that have ended.
    computes: AtomicU64,
    metrics: HttpMetrics,
}

impl Timings {
    fn new(metrics: HttpMetrics) -> Self {
        Self {
            received: Instant::now(),
            instantiated: OnceLock::new(),
            first_compute: OnceLock::new(),
            computes: AtomicU64::new(0),
            metrics,
        }
    }

    /// When the request came.
    pub fn received(&self) -> Instant {
        self.received
    }

    /// The instance is there.
    pub fn set_instantiated(&self, at: Instant) {
        if self.instantiated.set(at).is_ok() {
            observe(&self.metrics.instance_start, at - self.received);
        }
    }

    fn since_received(&self, at: &OnceLock<Instant>) -> Option<Duration> {
        Some(at.get()?.duration_since(self.received))
    }
}

impl ComputeObserver for Timings {
    /// When an instance computes for the first time, it has parsed and tokenized.
    fn begins(&self) {
        if self.first_compute.get().is_none() {
            let now = *self.first_compute.get_or_init(Instant::now);
            observe(&self.metrics.first_compute, now - self.received);
        }
    }

    fn ended(&self) {
        self.computes.fetch_add(1, Ordering::Relaxed);
    }
}

/// What the log says of a request.
#[derive(Clone)]
pub struct Log {
    /// The request's id.
    pub id: Arc<str>,
    /// When things happen to it.
    pub timings: Arc<Timings>,
    client: SocketAddr,
    method: Method,
    path: String,
}

impl Log {
    /// The log of a request that has just come.
    pub fn new<B>(
        request: &http::Request<B>,
        id: Arc<str>,
        client: SocketAddr,
        metrics: HttpMetrics,
    ) -> Self {
        Self {
            id,
            timings: Arc::new(Timings::new(metrics)),
            client,
            method: request.method().clone(),
            path: request.uri().path().to_owned(),
        }
    }

    /// The line, and the counts. `complete` is whether all of an instance's answer was taken.
    pub fn line(&self, status: u16, bytes: u64, complete: Option<bool>) {
        let Self { id, client, method, path, timings } = self;
        timings.metrics.count(status);
        if complete == Some(false) {
            timings.metrics.clients_left.inc();
        }
        let micros = |duration: Option<Duration>| duration.map(|d| d.as_micros() as u64);
        tracing::info!(
            target: "spinfer::request",
            %method,
            path,
            status,
            request = %id,
            %client,
            bytes,
            instantiated_us = micros(timings.since_received(&timings.instantiated)),
            first_compute_us = micros(timings.since_received(&timings.first_compute)),
            total_us = micros(Some(timings.received.elapsed())),
            client_left = complete.map(|complete| !complete).filter(|&left| left),
        );
    }
}

/// A request in flight: holds its place at the gate, and writes its line in the log when it is over.
pub struct InFlight {
    log: Option<Log>,
    status: u16,
    bytes: u64,
    /// The body's length, where it is known.
    length: Option<u64>,
    complete: bool,
    place: Place,
}

/// A place at the gate, where the request needs one.
pub type Place = Option<OwnedSemaphorePermit>;

impl InFlight {
    /// A request whose answer has not begun.
    pub fn new(log: Log, place: Place) -> Self {
        let complete = log.method == Method::HEAD;
        Self { log: Some(log), status: 0, bytes: 0, length: None, complete, place }
    }

    /// Somebody else writes the line.
    pub fn forget(&mut self) {
        self.log = None;
    }

    /// Takes note of the answer's head.
    pub fn note_head<B>(&mut self, answer: &http::Response<B>) {
        self.status = answer.status().as_u16();
        let length = answer.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
        self.length = length.and_then(|length| length.parse().ok());
        // Nobody reads a body that there can't be.
        let is_bare = matches!(self.status, 100..200 | 204 | 304) || self.length == Some(0);
        self.complete |= is_bare;
    }

    /// Its place at the gate, to be kept elsewhere.
    pub fn take_place(&mut self) -> Place {
        self.place.take()
    }

    /// Counts bytes of the body.
    pub fn count(&mut self, bytes: usize) {
        if let (true, 0, Some(log)) = (bytes > 0, self.bytes, &self.log) {
            tracing::debug!(
                request = %log.id,
                computes = log.timings.computes.load(Ordering::Relaxed),
                "the first chunk leaves"
            );
        }
        self.bytes += bytes as u64;
        if self.length == Some(self.bytes) {
            self.complete = true;
        }
    }

    /// Whether the whole body was taken.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// The whole body was taken.
    pub fn complete(&mut self) {
        self.complete = true;
    }

    #[cfg(test)]
    pub fn untracked() -> Self {
        Self { log: None, status: 0, bytes: 0, length: None, complete: false, place: None }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if let Some(log) = &self.log {
            log.line(self.status, self.bytes, Some(self.complete));
        }
    }
}
