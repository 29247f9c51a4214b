//! From prompts to tokens: what a request needs of the model ([`Plan`]), and the loop that feeds an
//! execution context and reads its logits ([`run`]).
//!
//! The context is a batch of rows that lives as long as the request. It is reserved first, so that a
//! full server is known before an answer begins. Then come the waves, each as many choices as there
//! are rows: all its prompts go in with one call, each is forked for its candidates, and then every
//! row gets one token a step. Rows that are done are left out of the next step.
//!
//! What a step brings is no more than what is read: where a few of the likeliest tokens decide, the
//! host reduces the logits to them.

mod batch;
mod context;
mod error;
mod plan;
mod prompt;
mod row;
mod score;
mod stop;
mod wave;

use std::future::Future;
use std::rc::Rc;

use spinfer_logits::Candidate;
use spinfer_protocol::tensor;

pub use context::{ExecutionContext, Logits, Outputs, Reductions, Step, Wanted};
pub use error::{BackendError, BackendErrorKind, ClientGone, GenerationError};
pub use plan::{Plan, PlannedPrompt, Read, Shown, Stops, encode, known, with_bos};
pub use row::FinishReason;
pub use score::Score;
pub use stop::StopPattern;
pub use wave::Wave;

use crate::models::Model;
use crate::sampling::{LogitsView, Sampler};
use crate::tokenizer::TokenId;
use batch::Batch;
use row::Row;
use score::Position;

/// What one candidate has got since its last delta. Joined, the deltas of a candidate are its answer.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Delta {
    /// The candidate's number: `i * candidates + j` for candidate j of prompt i.
    pub index: usize,
    /// More text. May be empty when the candidate ends, or when a token has none.
    pub text: String,
    /// The tokens that begin in the text, where the answer shows them.
    pub tokens: Vec<Token>,
    /// All tokens of the prompt, in the candidate's first delta, where the answer shows them.
    pub prompt_ids: Option<Rc<[TokenId]>>,
    /// Why the candidate ended; `None` until it does.
    pub finish: Option<FinishReason>,
    /// The mean log-probability of the candidate's tokens so far, where candidates are ranked.
    pub mean_logprob: f64,
}

impl Delta {
    /// Appends the candidate's next delta.
    pub fn append(&mut self, next: Delta) {
        self.text.push_str(&next.text);
        self.tokens.extend(next.tokens);
        self.prompt_ids = self.prompt_ids.take().or(next.prompt_ids);
        self.finish = next.finish;
        self.mean_logprob = next.mean_logprob;
    }
}

/// A token that the answer shows.
#[derive(Debug, Clone, PartialEq)]
pub struct Token {
    /// Its id.
    pub id: TokenId,
    /// Whether it isn't the prompt's.
    pub is_generated: bool,
    /// Its log-probability, where it is shown.
    pub score: Option<Score>,
}

/// Tokens that went in and came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Each prompt once, with what was put before it.
    pub prompt_tokens: usize,
    /// Those of them that earlier requests had computed; `None` where nobody knows.
    pub cached_tokens: Option<usize>,
    /// All tokens that were generated, those that ended a choice included.
    pub completion_tokens: usize,
}

/// Where deltas go.
pub trait Sink {
    /// Takes a delta. The next step is computed after the future is done.
    fn send(&mut self, delta: Delta) -> impl Future<Output = Result<(), ClientGone>>;
}

/// Generates all candidates of a plan in a reserved, otherwise unused context.
pub async fn run<C: ExecutionContext, S: Sink>(
    plan: &Plan,
    model: &Model,
    context: &mut C,
    sink: &mut S,
) -> Result<Usage, GenerationError> {
    let mut usage = Usage { prompt_tokens: plan.prompt_tokens(), ..Usage::default() };
    let mut reader = Reader::new(plan);
    let mut batch = Batch::new(context, plan, model);
    for wave in &plan.waves {
        batch.prefill(wave)?;
        let mut rows = Row::all(plan, wave, batch.prompts(), model);
        for row in &mut rows {
            if let Some(delta) = row.open(&batch.prompts()[row.place]) {
                sink.send(delta).await?;
            }
        }
        rows.retain(|row| !row.finished());
        while !rows.is_empty() {
            for row in &mut rows {
                let (token, score) = reader.next(batch.outputs(), row)?;
                usage.completion_tokens += 1;
                if let Some(delta) = row.accept(token, score) {
                    sink.send(delta).await?;
                }
            }
            rows.retain(|row| !row.finished());
            if !rows.is_empty() {
                batch.decode(wave, &mut rows)?;
            }
        }
    }
    usage.cached_tokens = model.card.takes(tensor::CACHE_SALT).then(|| batch.cached_tokens());
    Ok(usage)
}

/// Reads the outputs of steps: chooses tokens and scores them.
struct Reader<'a> {
    plan: &'a Plan,
    sampler: Sampler,
    top: Vec<Candidate>,
    scratch: Vec<f32>,
}

impl<'a> Reader<'a> {
    fn new(plan: &'a Plan) -> Self {
        let sampler = Sampler::new(plan.sampling.clone());
        Self { plan, sampler, top: Vec::new(), scratch: Vec::new() }
    }

    /// The next token of a row and, where tokens are scored, its log-probability.
    fn next(
        &mut self,
        outputs: &Outputs,
        row: &mut Row<'_>,
    ) -> Result<(TokenId, Option<Score>), GenerationError> {
        let place = row.place;
        let alternatives = self.plan.shown.logprobs.unwrap_or(0);
        let reductions = &outputs.reductions;
        let last = reductions.positions.saturating_sub(1);
        if self.plan.read != Read::Whole {
            self.top.clear();
            self.top.extend(reductions.top(place, last));
        }
        let token = match self.plan.read {
            Read::Whole => {
                let view = LogitsView::Whole(outputs.logits.row(place));
                self.sampler.choose(view, &mut row.chooser())?
            }
            Read::Top(_) => self.sampler.choose(LogitsView::Top(&self.top), &mut row.chooser())?,
            Read::Nucleus { .. } => {
                let weight_sum = reductions.weight_sum(place, last);
                let whole = || {
                    outputs.logits.fetch()?;
                    Ok::<_, GenerationError>(outputs.logits.row(place))
                };
                let rng = row.chooser().rng;
                self.sampler.choose_from_nucleus(&self.top, weight_sum, rng, whole)?
            }
        };
        if !self.plan.scores_tokens() {
            return Ok((token, None));
        }
        let (logit, log_sum_exp) = match self.plan.read {
            Read::Whole => {
                let logits = outputs.logits.row(place);
                spinfer_logits::top(logits, alternatives, &mut self.top);
                let log_sum_exp = spinfer_logits::log_sum_exp(logits, &mut self.scratch);
                (logits[token as usize], log_sum_exp)
            }
            Read::Top(_) | Read::Nucleus { .. } => {
                let found = self.top.iter().find(|(id, _)| *id == token);
                let logit = match found {
                    Some((_, logit)) => *logit,
                    // What isn't among the likeliest was chosen from the whole row.
                    None => outputs.logits.row(place)[token as usize],
                };
                (logit, reductions.log_sum_exp(place, last))
            }
        };
        let position = Position { top: &self.top, log_sum_exp };
        Ok((token, Some(position.generated(token, logit, alternatives)?)))
    }
}

#[cfg(test)]
mod tests;
