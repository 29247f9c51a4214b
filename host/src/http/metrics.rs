//! What is counted and timed of requests as such, whatever their component makes of them.

use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry};

/// Upper bounds in seconds of how long instances take to start.
const STARTS: &[f64] = &[
    0.0001, 0.0002, 0.0004, 0.0008, 0.001, 0.0015, 0.002, 0.004, 0.008, 0.016, 0.1, 0.5, 1.0, 5.0,
];

/// The metrics of the HTTP server.
#[derive(Clone)]
pub struct HttpMetrics {
    requests: IntCounterVec,
    /// Requests whose client has gone away before it had the whole answer.
    pub clients_left: IntCounter,
    /// Requests that have passed the gate and aren't over.
    pub in_flight: IntGauge,
    /// From a request's arrival to its instance.
    pub instance_start: Histogram,
    /// From a request's arrival to its instance's first call of `compute`.
    pub first_compute: Histogram,
}

impl HttpMetrics {
    /// Registers the metrics.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let requests = IntCounterVec::new(
            Opts::new("spinfer_requests_total", "Requests that are over, by the answer's status"),
            &["status"],
        )?;
        let clients_left = IntCounter::new(
            "spinfer_clients_left_total",
            "Requests whose client left before it had the whole answer",
        )?;
        let in_flight = IntGauge::new(
            "spinfer_requests_in_flight",
            "Requests that have passed the gate and aren't over",
        )?;
        let starts = |name: &str, help: &str| {
            let opts = HistogramOpts::new(name, help).buckets(STARTS.to_vec());
            let histogram = Histogram::with_opts(opts)?;
            registry.register(Box::new(histogram.clone()))?;
            Ok::<_, prometheus::Error>(histogram)
        };
        registry.register(Box::new(requests.clone()))?;
        registry.register(Box::new(clients_left.clone()))?;
        registry.register(Box::new(in_flight.clone()))?;
        Ok(Self {
            requests,
            clients_left,
            in_flight,
            instance_start: starts(
                "spinfer_instance_start_seconds",
                "From a request's arrival to its instance",
            )?,
            first_compute: starts(
                "spinfer_first_compute_seconds",
                "From a request's arrival to its instance's first computation",
            )?,
        })
    }

    /// A request has been answered with that status; 0 when its client left before there was one.
    pub fn count(&self, status: u16) {
        self.requests.with_label_values(&[status.to_string()]).inc();
    }
}
