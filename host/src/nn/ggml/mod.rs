//! The GGML backend: llama.cpp, with continuous batching over all requests in flight.
//!
//! One thread per model owns the llama context ([`scheduler`]); execution contexts are handles that
//! talk to it by messages ([`message`]). [`admission`] decides who may hold sequences, [`sequences`]
//! how rows map to them, [`batching`] what a step computes, [`outputs`] what of the logits is handed on; these are pure. [`memory`] knows
//! what each sequence holds, so that prompts can begin with what earlier requests have computed.

mod admission;
mod batching;
mod memory;
mod message;
mod scheduler;
mod sequences;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use spinfer_llama::{Context, ContextParams, LoadError, Model, ModelParams};
use tokio::sync::oneshot;

use super::convention::{self, Limits, RowLengths};
use super::metrics::ModelMetrics;
use super::{Arrival, Arrivals, NamedTensor, NnError, Tensor};
use memory::Scope;
use message::{ContextId, Message};
use scheduler::Scheduler;

/// How a model is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The llama context.
    pub context: ContextParams,
    /// The longest row in tokens; llama.cpp's own limit is a multiple of 256.
    pub row_length: u32,
    /// The most rows of one execution context.
    pub max_rows: u32,
    /// The most tokens of long prompts in a step, while there are rows that decode.
    pub chunk: u32,
    /// Whether prompts may begin with what earlier requests have computed.
    pub prefix_cache: bool,
    /// How long a reservation waits for room.
    pub longest_wait: Duration,
    /// How long a step waits for rows whose last step has just ended, and for requests that have just come:
    /// guests sample and tokenize meanwhile.
    pub gather: Duration,
}

/// A loaded model and the thread that runs it.
pub struct GgmlGraph {
    to_scheduler: mpsc::Sender<Message>,
    next_context: AtomicU64,
    limits: Limits,
    abort: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl GgmlGraph {
    /// Loads a model and starts its thread.
    pub fn load(
        path: &Path,
        params: &ModelParams,
        settings: Settings,
        metrics: ModelMetrics,
        arrivals: Arrivals,
    ) -> Result<Self, LoadError> {
        let model = Arc::new(Model::load(path, params)?);
        let context = Context::new(model.clone(), &settings.context)?;
        let limits = Limits {
            vocab_size: model.vocab_size(),
            context: settings.row_length.min(context.context_per_sequence()),
            max_rows: settings.max_rows.min(admission::most_wide(context.sequences())),
            rewinds: model.can_rewind(),
        };
        let abort = context.abort_flag();
        let (to_scheduler, inbox) = mpsc::channel();
        let scheduler = Scheduler::new(context, settings, inbox, metrics, arrivals);
        let thread = std::thread::Builder::new()
            .name("ggml".into())
            .spawn(move || scheduler.run())
            .map_err(|error| LoadError::Refused(format!("no thread: {error}")))?;
        Ok(Self {
            to_scheduler,
            next_context: AtomicU64::new(0),
            limits,
            abort,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// What calls are checked against.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// An empty batch of sequences of that component, for a request that arrives when it computes.
    pub fn init_context(
        self: &Arc<Self>,
        component: Arc<str>,
        arrival: Option<Arrival>,
    ) -> GgmlContext {
        GgmlContext {
            graph: self.clone(),
            component,
            arrival,
            id: self.next_context.fetch_add(1, Ordering::Relaxed),
            lengths: RowLengths::default(),
            known: false,
            broken: false,
        }
    }
}

impl Drop for GgmlGraph {
    fn drop(&mut self) {
        self.abort.store(true, Ordering::Relaxed);
        // The thread is gone only if it panicked; there is nobody to tell then.
        let _ = self.to_scheduler.send(Message::Stop);
        if let Some(thread) = self.thread.lock().ok().and_then(|mut thread| thread.take()) {
            let _ = thread.join();
        }
    }
}

/// One request's batch of sequences: the caller's side of a context in the scheduler.
pub struct GgmlContext {
    graph: Arc<GgmlGraph>,
    component: Arc<str>,
    /// The request, until the scheduler has heard of it.
    arrival: Option<Arrival>,
    id: ContextId,
    lengths: RowLengths,
    /// Whether the scheduler has heard of it.
    known: bool,
    /// Whether a call failed or was dropped half-way, so that the rows are not what `lengths` says.
    broken: bool,
}

impl GgmlContext {
    /// Computes one call of the convention.
    pub async fn compute(
        &mut self,
        inputs: &[(String, &Tensor)],
    ) -> Result<Vec<NamedTensor>, NnError> {
        if self.broken {
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
        let after: Vec<u32> = step.rows.iter().map(convention::RowStep::end).collect();
        let columns = step.columns;
        self.broken = true;
        let (reply, answer) = oneshot::channel();
        let scope = call.cache_salt.map(|salt| scope(&self.component, &salt));
        self.send(Message::Compute { context: self.id, step, scope, reply })?;
        let outputs = answer.await.map_err(|_| stopped())??;
        self.broken = false;
        self.lengths.rows = after;
        self.lengths.columns = self.lengths.columns.saturating_add(columns);
        Ok(outputs.into_tensors())
    }

    async fn reserve(&mut self, rows: u32, tokens: u64) -> Result<(), NnError> {
        let (reply, answer) = oneshot::channel();
        self.known = true;
        let arrival = self.arrival.take();
        self.send(Message::Reserve { context: self.id, sequences: rows, arrival, reply })?;
        answer.await.map_err(|_| stopped())??;
        self.lengths.reserved = Some((rows, tokens));
        Ok(())
    }

    fn send(&self, message: Message) -> Result<(), NnError> {
        self.graph.to_scheduler.send(message).map_err(|_| stopped())
    }
}

impl Drop for GgmlContext {
    fn drop(&mut self) {
        if self.known {
            // If the scheduler is gone, so is what it held.
            let _ = self.send(Message::Close { context: self.id });
        }
    }
}

/// A component and a salt. The component's name is followed by a byte that no text has.
fn scope(component: &str, salt: &[u8]) -> Scope {
    [component.as_bytes(), &[0xff], salt].concat().into()
}

fn stopped() -> NnError {
    NnError::runtime("the model has stopped")
}

#[cfg(test)]
mod tests;
