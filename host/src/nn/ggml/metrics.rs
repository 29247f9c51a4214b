//! What one model's scheduler counts.

use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

/// The metrics of the GGML backend over all models, labelled by `model_name`.
#[derive(Clone)]
pub struct GgmlMetrics {
    steps: IntCounterVec,
    prefill_tokens: IntCounterVec,
    decode_tokens: IntCounterVec,
    cached_tokens: IntCounterVec,
    cancelled: IntCounterVec,
    sequences_held: IntGaugeVec,
    cells_used: IntGaugeVec,
    waiting: IntGaugeVec,
}

/// The metrics of one model.
#[derive(Clone)]
pub struct ModelMetrics {
    /// Calls of `llama_decode`.
    pub steps: IntCounter,
    /// Tokens computed as part of prompts.
    pub prefill_tokens: IntCounter,
    /// Tokens computed one at a time.
    pub decode_tokens: IntCounter,
    /// Prompt tokens that earlier requests have computed.
    pub cached_tokens: IntCounter,
    /// Calls that were given up before they were done.
    pub cancelled: IntCounter,
    /// Sequences that execution contexts hold now.
    pub sequences_held: IntGauge,
    /// Tokens in the KV cache now, those of the prefix cache included.
    pub cells_used: IntGauge,
    /// Execution contexts that wait for sequences now.
    pub waiting: IntGauge,
}

impl GgmlMetrics {
    /// Registers the metrics.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str| {
            let counter = IntCounterVec::new(Opts::new(name, help), &["model_name"])?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        let gauge = |name: &str, help: &str| {
            let gauge = IntGaugeVec::new(Opts::new(name, help), &["model_name"])?;
            registry.register(Box::new(gauge.clone()))?;
            Ok::<_, prometheus::Error>(gauge)
        };
        Ok(Self {
            steps: counter("spinfer_steps_total", "Calls of llama_decode")?,
            prefill_tokens: counter("spinfer_prefill_tokens_total", "Prompt tokens computed")?,
            decode_tokens: counter("spinfer_decode_tokens_total", "Tokens computed one at a time")?,
            cached_tokens: counter(
                "spinfer_cached_tokens_total",
                "Prompt tokens not computed again",
            )?,
            cancelled: counter("spinfer_cancelled_total", "Computations given up half-way")?,
            sequences_held: gauge("spinfer_sequences_held", "Sequences held by requests")?,
            cells_used: gauge("spinfer_cells_used", "Tokens in the KV cache, finished ones too")?,
            waiting: gauge("spinfer_waiting", "Requests that wait for sequences")?,
        })
    }

    /// The metrics of one model.
    pub fn of(&self, model: &str) -> ModelMetrics {
        let labels = &[model];
        ModelMetrics {
            steps: self.steps.with_label_values(labels),
            prefill_tokens: self.prefill_tokens.with_label_values(labels),
            decode_tokens: self.decode_tokens.with_label_values(labels),
            cached_tokens: self.cached_tokens.with_label_values(labels),
            cancelled: self.cancelled.with_label_values(labels),
            sequences_held: self.sequences_held.with_label_values(labels),
            cells_used: self.cells_used.with_label_values(labels),
            waiting: self.waiting.with_label_values(labels),
        }
    }
}
