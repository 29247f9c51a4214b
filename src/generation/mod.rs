//! From prompts to tokens: what a request needs of the model ([`Plan`]), and the loop that feeds an
//! execution context and reads its logits ([`run`]).
//!
//! The context is a batch of rows that lives as long as the request. It is reserved first, so that a
//! full server is known before an answer begins; then it takes all prompts in one call; then one
//! token a row and step. Rows that are done are left out of the next step.

mod context;
mod error;
mod plan;
mod row;
mod stop;

use std::future::Future;

use spinfer_protocol::ModelCard;

pub use context::{ExecutionContext, Logits, Step};
pub use error::{BackendError, BackendErrorKind, ClientGone, GenerationError};
pub use plan::{Plan, PlannedPrompt};
pub use row::FinishReason;

use crate::models::Model;
use crate::sampling::Sampler;
use crate::tokenizer::TokenId;
use row::Row;

/// What one choice has got since its last delta. Joined, the deltas of a choice are its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delta {
    /// The choice's place in the answer.
    pub index: usize,
    /// More text. May be empty when the choice ends.
    pub text: String,
    /// Why the choice ended; `None` until it does.
    pub finish: Option<FinishReason>,
}

/// Tokens that went in and came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Each prompt once, with what was put before it.
    pub prompt_tokens: usize,
    /// All tokens that were generated, those that ended a choice included.
    pub completion_tokens: usize,
}

/// Where deltas go.
pub trait Sink {
    /// Takes a delta. The next step is computed after the future is done.
    fn send(&mut self, delta: Delta) -> impl Future<Output = Result<(), ClientGone>>;
}

/// Generates all choices of a plan in a reserved, otherwise unused context.
pub async fn run<C: ExecutionContext, S: Sink>(
    plan: &Plan,
    model: &Model,
    context: &mut C,
    sink: &mut S,
) -> Result<Usage, GenerationError> {
    let mut usage = Usage { prompt_tokens: plan.prompt_tokens(), completion_tokens: 0 };
    let mut rows = Row::all(plan);
    if plan.is_empty() {
        for row in &rows {
            sink.send(row.nothing()).await?;
        }
        return Ok(usage);
    }
    let mut batch = Batch::new(context, &model.card);
    let mut sampler = Sampler::new(plan.sampling);
    batch.prefill(plan)?;
    loop {
        for row in &mut rows {
            let token = sampler.choose(batch.logits.row(row.place), &mut row.rng)?;
            usage.completion_tokens += 1;
            let delta = row.accept(token, model);
            if !delta.text.is_empty() || delta.finish.is_some() {
                sink.send(delta).await?;
            }
        }
        rows.retain(|row| !row.finished());
        if rows.is_empty() {
            return Ok(usage);
        }
        batch.decode(&mut rows)?;
    }
}

/// The context's rows as they are after the last step, and that step's logits.
struct Batch<'a, C> {
    context: &'a mut C,
    card: &'a ModelCard,
    logits: Logits,
    size: usize,
}

impl<'a, C: ExecutionContext> Batch<'a, C> {
    fn new(context: &'a mut C, card: &'a ModelCard) -> Self {
        Self { context, card, logits: Logits::default(), size: 0 }
    }

    /// Every prompt becomes a row, in the plan's order.
    fn prefill(&mut self, plan: &Plan) -> Result<(), BackendError> {
        let tokens = plan.prompts.iter().map(|prompt| prompt.tokens.as_slice()).collect::<Vec<_>>();
        self.step(&Step { tokens: &tokens, parents: None })
    }

    /// Each row gets its last token; rows that aren't among these are dropped.
    fn decode(&mut self, rows: &mut [Row]) -> Result<(), BackendError> {
        let parents = rows.iter().map(|row| row.place).collect::<Vec<_>>();
        let same = parents.len() == self.size
            && parents.iter().enumerate().all(|(at, place)| at == *place);
        let last = rows.iter().map(|row| [row.last]).collect::<Vec<[TokenId; 1]>>();
        let tokens = last.iter().map(<[TokenId; 1]>::as_slice).collect::<Vec<_>>();
        self.step(&Step { tokens: &tokens, parents: (!same).then_some(&parents) })?;
        for (place, row) in rows.iter_mut().enumerate() {
            row.place = place;
        }
        Ok(())
    }

    fn step(&mut self, step: &Step<'_>) -> Result<(), BackendError> {
        self.context.compute(step, &mut self.logits)?;
        self.logits.check(step.tokens.len(), self.card.vocab_size as usize)?;
        self.size = step.tokens.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
