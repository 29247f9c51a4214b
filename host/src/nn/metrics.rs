//! What is counted and timed of each model. Where vLLM measures the same, the name is vLLM's
//! (<https://docs.vllm.ai/en/stable/usage/metrics/>), so that dashboards and gateways made for it work.

use std::time::{Duration, Instant};

use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry,
};

/// The label of all of them.
const LABELS: &[&str] = &["model_name"];

/// Upper bounds in tokens of a step.
const TOKENS: &[f64] =
    &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0];

/// Upper bounds in seconds of what takes a step or a few.
const STEPS: &[f64] = &[
    0.0005, 0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.04, 0.06, 0.1, 0.2, 0.4, 1.0, 2.5,
    10.0,
];

/// Upper bounds in seconds of what takes a request's time.
const REQUESTS: &[f64] = &[
    0.005, 0.01, 0.02, 0.04, 0.06, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0,
    160.0,
];

/// Upper bounds in seconds of what a guest or the host does between two steps.
const GAPS: &[f64] =
    &[0.000_05, 0.0001, 0.0002, 0.0004, 0.0008, 0.0016, 0.0032, 0.0064, 0.0128, 0.1];

/// The metrics over all models, labelled by `model_name`.
#[derive(Clone)]
pub struct NnMetrics {
    running: IntGaugeVec,
    waiting: IntGaugeVec,
    kv_cache_usage: prometheus::GaugeVec,
    prompt_tokens: IntCounterVec,
    generation_tokens: IntCounterVec,
    prefix_queries: IntCounterVec,
    prefix_hits: IntCounterVec,
    step_tokens: HistogramVec,
    first_token: HistogramVec,
    inter_token: HistogramVec,
    queue_time: HistogramVec,
    request_time: HistogramVec,
    prefill_tokens: IntCounterVec,
    cancelled: IntCounterVec,
    sequences_held: IntGaugeVec,
    cells_used: IntGaugeVec,
    step_time: HistogramVec,
    step_gap: HistogramVec,
    guest_time: HistogramVec,
}

/// The metrics of one model.
#[derive(Clone)]
pub struct ModelMetrics {
    /// Requests that hold sequences now.
    pub running: IntGauge,
    /// Requests that wait for sequences now.
    pub waiting: IntGauge,
    /// The share of the KV cache that requests hold, 0 to 1: of its sequences, since each has its own
    /// share of the cells.
    pub kv_cache_usage: prometheus::Gauge,
    /// Tokens of prompts, cached ones included.
    pub prompt_tokens: IntCounter,
    /// Tokens computed one at a time: what was generated, but for the last token of each choice.
    pub generation_tokens: IntCounter,
    /// Tokens of prompts that were looked for in the prefix cache.
    pub prefix_queries: IntCounter,
    /// Those of them that earlier requests had computed.
    pub prefix_hits: IntCounter,
    /// Tokens of each step.
    pub step_tokens: Histogram,
    /// From a request's arrival to the outputs that its first token is chosen by.
    pub first_token: Histogram,
    /// From a request's outputs to its next.
    pub inter_token: Histogram,
    /// How long requests have waited for sequences.
    pub queue_time: Histogram,
    /// From a request's arrival to the end of its execution context.
    pub request_time: Histogram,
    /// Tokens computed as part of prompts.
    pub prefill_tokens: IntCounter,
    /// Calls that were given up before they were done.
    pub cancelled: IntCounter,
    /// Sequences that execution contexts hold now.
    pub sequences_held: IntGauge,
    /// Tokens in the KV cache now, those of the prefix cache included.
    pub cells_used: IntGauge,
    /// Time of each step in the backend.
    pub step_time: Histogram,
    /// From a step's end to the next's beginning, where the next had a row of it: what guests and the
    /// host need between two tokens.
    pub step_gap: Histogram,
    /// From an instance's outputs to its next computation: it chooses tokens and writes its answer.
    pub guest_time: Histogram,
}

impl NnMetrics {
    /// Registers the metrics.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str| {
            let counter = IntCounterVec::new(Opts::new(name, help), LABELS)?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        let gauge = |name: &str, help: &str| {
            let gauge = IntGaugeVec::new(Opts::new(name, help), LABELS)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok::<_, prometheus::Error>(gauge)
        };
        let histogram = |name: &str, help: &str, buckets: &[f64]| {
            let opts = HistogramOpts::new(name, help).buckets(buckets.to_vec());
            let histogram = HistogramVec::new(opts, LABELS)?;
            registry.register(Box::new(histogram.clone()))?;
            Ok::<_, prometheus::Error>(histogram)
        };
        let usage = Opts::new(
            "vllm:kv_cache_usage_perc",
            "The share of the KV cache that requests hold; 1 is all",
        );
        let kv_cache_usage = prometheus::GaugeVec::new(usage, LABELS)?;
        registry.register(Box::new(kv_cache_usage.clone()))?;
        Ok(Self {
            running: gauge("vllm:num_requests_running", "Requests that hold sequences")?,
            waiting: gauge("vllm:num_requests_waiting", "Requests that wait for sequences")?,
            kv_cache_usage,
            prompt_tokens: counter("vllm:prompt_tokens_total", "Prompt tokens, cached ones too")?,
            generation_tokens: counter(
                "vllm:generation_tokens_total",
                "Tokens computed one at a time: all generated ones but the last of each choice",
            )?,
            prefix_queries: counter(
                "vllm:prefix_cache_queries_total",
                "Prompt tokens looked for in the prefix cache",
            )?,
            prefix_hits: counter(
                "vllm:prefix_cache_hits_total",
                "Prompt tokens found in the prefix cache, and not computed again",
            )?,
            step_tokens: histogram("vllm:iteration_tokens_total", "Tokens of a step", TOKENS)?,
            first_token: histogram(
                "vllm:time_to_first_token_seconds",
                "From a request's arrival to what its first token is chosen by",
                REQUESTS,
            )?,
            inter_token: histogram(
                "vllm:inter_token_latency_seconds",
                "Between two tokens of a request",
                STEPS,
            )?,
            queue_time: histogram(
                "vllm:request_queue_time_seconds",
                "How long a request has waited for sequences",
                REQUESTS,
            )?,
            request_time: histogram(
                "vllm:e2e_request_latency_seconds",
                "From a request's arrival to the end of its computations",
                REQUESTS,
            )?,
            prefill_tokens: counter("spinfer_prefill_tokens_total", "Prompt tokens computed")?,
            cancelled: counter("spinfer_cancelled_total", "Computations given up half-way")?,
            sequences_held: gauge("spinfer_sequences_held", "Sequences held by requests")?,
            cells_used: gauge("spinfer_cells_used", "Tokens in the KV cache, finished ones too")?,
            step_time: histogram("spinfer_step_seconds", "Time of a step in the backend", STEPS)?,
            step_gap: histogram(
                "spinfer_step_gap_seconds",
                "From a step's end to the next's beginning, while rows go on",
                GAPS,
            )?,
            guest_time: histogram(
                "spinfer_guest_seconds",
                "Of an instance between two computations: choosing tokens, writing the answer",
                GAPS,
            )?,
        })
    }

    /// The metrics of one model.
    pub fn of(&self, model: &str) -> ModelMetrics {
        let labels = &[model];
        ModelMetrics {
            running: self.running.with_label_values(labels),
            waiting: self.waiting.with_label_values(labels),
            kv_cache_usage: self.kv_cache_usage.with_label_values(labels),
            prompt_tokens: self.prompt_tokens.with_label_values(labels),
            generation_tokens: self.generation_tokens.with_label_values(labels),
            prefix_queries: self.prefix_queries.with_label_values(labels),
            prefix_hits: self.prefix_hits.with_label_values(labels),
            step_tokens: self.step_tokens.with_label_values(labels),
            first_token: self.first_token.with_label_values(labels),
            inter_token: self.inter_token.with_label_values(labels),
            queue_time: self.queue_time.with_label_values(labels),
            request_time: self.request_time.with_label_values(labels),
            prefill_tokens: self.prefill_tokens.with_label_values(labels),
            cancelled: self.cancelled.with_label_values(labels),
            sequences_held: self.sequences_held.with_label_values(labels),
            cells_used: self.cells_used.with_label_values(labels),
            step_time: self.step_time.with_label_values(labels),
            step_gap: self.step_gap.with_label_values(labels),
            guest_time: self.guest_time.with_label_values(labels),
        }
    }
}

/// What of a model's gauges is one's own: while a model is loaded again, the new one and the old one are
/// both counted, and whoever goes takes away what is its own.
pub struct Share {
    metrics: ModelMetrics,
    shown: Held,
}

/// What is held and waited for.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Held {
    /// Requests that hold sequences.
    pub running: i64,
    /// Requests that wait for some.
    pub waiting: i64,
    /// Sequences that are held.
    pub sequences: i64,
    /// The share of all of them.
    pub usage: f64,
    /// Tokens in the KV cache.
    pub cells: i64,
}

impl Share {
    /// Nothing yet.
    pub fn new(metrics: ModelMetrics) -> Self {
        Self { metrics, shown: Held::default() }
    }

    /// Shows this instead of what was shown before.
    pub fn show(&mut self, held: Held) {
        let before = std::mem::replace(&mut self.shown, held);
        self.metrics.running.add(held.running - before.running);
        self.metrics.waiting.add(held.waiting - before.waiting);
        self.metrics.sequences_held.add(held.sequences - before.sequences);
        self.metrics.kv_cache_usage.add(held.usage - before.usage);
        self.metrics.cells_used.add(held.cells - before.cells);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.show(Held::default());
    }
}

/// When a request has got its tokens.
pub struct TokenClock {
    metrics: ModelMetrics,
    arrived: Instant,
    last: Option<Instant>,
}

impl TokenClock {
    /// The clock of a request that came then.
    pub fn new(metrics: ModelMetrics, arrived: Instant) -> Self {
        Self { metrics, arrived, last: None }
    }

    /// The next computation is asked for.
    pub fn resume(&mut self) {
        if let Some(last) = self.last {
            observe(&self.metrics.guest_time, last.elapsed());
        }
    }

    /// The outputs are there by which a token is chosen.
    pub fn tick(&mut self) {
        let now = Instant::now();
        match self.last.replace(now) {
            None => observe(&self.metrics.first_token, now - self.arrived),
            Some(last) => observe(&self.metrics.inter_token, now - last),
        }
    }
}

impl Drop for TokenClock {
    fn drop(&mut self) {
        // A request that was refused has computed nothing.
        if self.last.is_some() {
            observe(&self.metrics.request_time, self.arrived.elapsed());
        }
    }
}

/// Counts a duration.
pub fn observe(histogram: &Histogram, duration: Duration) {
    histogram.observe(duration.as_secs_f64());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_that_compute_the_same_model_are_counted_together() {
        let metrics = NnMetrics::register(&Registry::new()).unwrap().of("m");
        let (mut old, mut new) = (Share::new(metrics.clone()), Share::new(metrics.clone()));
        old.show(Held { running: 2, waiting: 1, sequences: 3, usage: 0.75, cells: 40 });
        new.show(Held { running: 1, sequences: 1, usage: 0.25, cells: 5, ..Held::default() });
        old.show(Held { running: 1, sequences: 2, usage: 0.5, cells: 30, ..Held::default() });
        let gauges = || {
            (
                metrics.running.get(),
                metrics.waiting.get(),
                metrics.sequences_held.get(),
                metrics.kv_cache_usage.get(),
                metrics.cells_used.get(),
            )
        };
        assert_eq!(gauges(), (2, 0, 3, 0.75, 35));
        drop(old);
        assert_eq!(gauges(), (1, 0, 1, 0.25, 5));
        drop(new);
        assert_eq!(gauges(), (0, 0, 0, 0.0, 0));
    }
}
