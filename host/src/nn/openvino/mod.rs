//! OpenVINO as a backend: models of optimum-intel's kind, whose memory is in the library.
//!
//! Each execution context has a request of the library, with its rows in it ([`Columns`]). Contexts are
//! computed one after the other, or as many at a time as there are streams ([`workers`]); long prompts go in
//! passes, between which others have their turn.

pub mod library;
mod model;
#[cfg(test)]
mod tests;
mod workers;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Deserialize;
use spinfer_protocol::columns::{Columns, Pass, RowTokens};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::convention::{self, Limits, RowLengths, RowStep, Step};
use super::metrics::{Held, ModelMetrics, Share, observe};
use super::outputs::Outputs;
use super::{Arrival, NamedTensor, NnError, Tensor};
use model::{Compiled, Memory};
use workers::Workers;

/// How a model is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Where it computes.
    pub device: Device,
    /// Threads of the CPU that compute.
    pub threads: u32,
    /// How many contexts are computed at a time; they share the threads.
    pub streams: u32,
    /// In what the KV cache is kept.
    pub kv_precision: KvPrecision,
    /// The longest row in tokens.
    pub row_length: u32,
    /// Rows at a time, over all contexts.
    pub sequences: u32,
    /// The most rows of one execution context.
    pub max_rows: u32,
    /// The most columns of a pass.
    pub chunk: u32,
    /// How long a reservation waits for room.
    pub longest_wait: Duration,
}

/// A device of the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    /// The CPU.
    Cpu,
    /// A GPU of Intel's.
    Gpu,
}

/// In what the KV cache is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvPrecision {
    /// As it is computed on the CPU.
    #[default]
    F32,
    /// Half of that.
    F16,
    /// A quarter, which moves logits by some tenths.
    U8,
}

/// Why a model did not load.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The path can't be given to the library.
    #[error("the path is not UTF-8")]
    Path,
    /// The library can't be used.
    #[error("OpenVINO can't be used: {0}")]
    Library(String),
    /// The model is no such model, or the library refused it; its own words.
    #[error("{0}")]
    Refused(String),
}

/// A loaded model.
pub struct OpenvinoGraph {
    model: Arc<Compiled>,
    workers: Workers,
    room: Arc<Semaphore>,
    settings: Settings,
    limits: Limits,
    metrics: ModelMetrics,
}

/// One request's batch of sequences.
pub struct OpenvinoContext {
    graph: Arc<OpenvinoGraph>,
    /// The request, until it has reserved.
    arrival: Option<Arrival>,
    admitted: Option<Admitted>,
    lengths: RowLengths,
    columns: Columns,
    /// None while a pass runs, and when a call failed or was dropped half-way.
    memory: Option<Memory>,
}

/// The sequences that a context holds.
struct Admitted {
    _permit: OwnedSemaphorePermit,
    _share: Share,
}

impl OpenvinoGraph {
    /// Loads the model in the files `xml` and `bin`, and starts its threads. The library must be loaded.
    pub fn load(
        xml: &Path,
        bin: &Path,
        settings: Settings,
        metrics: ModelMetrics,
    ) -> Result<Self, LoadError> {
        let model = Compiled::load(xml, bin, &settings)?;
        let limits = Limits {
            vocab_size: model.vocab_size(),
            context: settings.row_length,
            max_rows: settings.max_rows.min(settings.sequences),
            rewinds: false,
        };
        let workers = Workers::start(settings.streams)
            .map_err(|error| LoadError::Refused(format!("no thread: {error}")))?;
        Ok(Self {
            model: Arc::new(model),
            workers,
            room: Arc::new(Semaphore::new(settings.sequences as usize)),
            settings,
            limits,
            metrics,
        })
    }

    /// What calls are checked against.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// An empty batch of sequences, for a request that arrives when it computes.
    pub fn init_context(self: &Arc<Self>, arrival: Option<Arrival>) -> OpenvinoContext {
        OpenvinoContext {
            graph: self.clone(),
            arrival,
            admitted: None,
            lengths: RowLengths::default(),
            columns: Columns::default(),
            memory: Some(Memory::default()),
        }
    }

    /// Waits for room for so many rows, in turn.
    async fn admit(&self, rows: u32) -> Result<Admitted, NnError> {
        let since = Instant::now();
        let mut share = Share::new(self.metrics.clone());
        share.show(Held { waiting: 1, ..Held::default() });
        let permit = self.room.clone().acquire_many_owned(rows);
        let permit = tokio::time::timeout(self.settings.longest_wait, permit).await;
        observe(&self.metrics.queue_time, since.elapsed());
        match permit {
            Ok(Ok(permit)) => {
                let usage = f64::from(rows) / f64::from(self.settings.sequences);
                let sequences = i64::from(rows);
                share.show(Held { running: 1, sequences, usage, ..Held::default() });
                Ok(Admitted { _permit: permit, _share: share })
            }
            Ok(Err(_)) => Err(NnError::runtime("the model has stopped")),
            Err(_) => Err(NnError::timeout(format!(
                "no room for the request within {} s: others hold all sequences",
                self.settings.longest_wait.as_secs_f32()
            ))),
        }
    }
}

impl OpenvinoContext {
    /// Computes one call of the convention.
    pub async fn compute(
        &mut self,
        inputs: &[(String, &Tensor)],
    ) -> Result<Vec<NamedTensor>, NnError> {
        if self.memory.is_none() {
            return Err(NnError::runtime("an earlier call of this execution context failed"));
        }
        let call = convention::read(inputs, &self.lengths, &self.graph.limits)?;
        if let Some(rows) = &call.reserve {
            let tokens = rows.iter().map(|&length| u64::from(length)).sum();
            self.reserve(rows.len() as u32, tokens).await?;
        }
        let Some(step) = call.step else { return Ok(Vec::new()) };
        if self.lengths.reserved.is_none() {
            // Nothing said how long the rows will be: as long as the context, as many as there are.
            let rows = step.rows.len() as u32;
            self.reserve(rows, u64::from(rows) * u64::from(self.graph.limits.context)).await?;
        }
        let outputs = self.run(&step).await?;
        self.lengths.rows = step.rows.iter().map(RowStep::end).collect();
        self.lengths.columns = self.lengths.columns.saturating_add(step.columns);
        Ok(outputs.into_tensors())
    }

    async fn reserve(&mut self, rows: u32, tokens: u64) -> Result<(), NnError> {
        self.arrival = None;
        self.admitted = Some(self.graph.admit(rows).await?);
        self.lengths.reserved = Some((rows, tokens));
        Ok(())
    }

    async fn run(&mut self, step: &Step) -> Result<Outputs, NnError> {
        let graph = self.graph.clone();
        let metrics = &graph.metrics;
        let mut outputs = Outputs::new(step, graph.limits.vocab_size, None);
        let rows: Vec<_> = step.rows.iter().map(row_tokens).collect();
        let (keep, most) = (step.keep as usize, graph.settings.chunk as usize);
        let passes = self.columns.passes(&rows, keep, most);
        let mut cancelled = Cancelled(Some(metrics));
        for pass in passes {
            let Some(mut memory) = self.memory.take() else { break };
            let model = graph.model.clone();
            let tokens = pass_tokens(step, &pass);
            let metrics = metrics.clone();
            let ran = graph.workers.run(move |scratch| {
                let began = Instant::now();
                let ran = model.run(&mut memory, &pass, &mut outputs, scratch);
                observe(&metrics.step_time, began.elapsed());
                metrics.step_tokens.observe((pass.rows * pass.columns) as f64);
                ran.map(|()| (memory, outputs))
            });
            let ran = ran.await.flatten();
            if ran.is_err() {
                cancelled.0 = None;
            }
            let (memory, filled) = ran?;
            (self.memory, outputs) = (Some(memory), filled);
            graph.metrics.generation_tokens.inc_by(tokens.generated);
            graph.metrics.prefill_tokens.inc_by(tokens.of_prompts);
            graph.metrics.prompt_tokens.inc_by(tokens.of_prompts);
        }
        cancelled.0 = None;
        Ok(outputs)
    }
}

fn row_tokens(row: &RowStep) -> RowTokens<'_, i32> {
    RowTokens { parent: row.parent, start: row.start as usize, tokens: &row.tokens }
}

/// Tokens that a pass computes, without padding.
struct PassTokens {
    generated: u64,
    of_prompts: u64,
}

fn pass_tokens(step: &Step, pass: &Pass) -> PassTokens {
    let mut tokens = PassTokens { generated: 0, of_prompts: 0 };
    let masks = pass.attention_mask.chunks(pass.attention_mask.len() / pass.rows.max(1));
    for (row, mask) in step.rows.iter().zip(masks) {
        let new = mask[mask.len() - pass.columns..].iter().filter(|own| **own == 1).count() as u64;
        if row.start > 0 && row.tokens.len() == 1 {
            tokens.generated += new;
        } else {
            tokens.of_prompts += new;
        }
    }
    tokens
}

/// Counts a call that is dropped before it is done.
struct Cancelled<'a>(Option<&'a ModelMetrics>);

impl Drop for Cancelled<'_> {
    fn drop(&mut self) {
        if let Some(metrics) = self.0 {
            metrics.cancelled.inc();
        }
    }
}

impl KvPrecision {
    /// Bytes of a number in it.
    pub fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
            Self::U8 => 1,
        }
    }

    /// The library's name for it.
    fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::U8 => "u8",
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cpu => "CPU",
            Self::Gpu => "GPU",
        })
    }
}
