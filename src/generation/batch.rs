//! The context's rows from step to step, and what the last step brought.

use spinfer_protocol::tensor;

use super::context::{ExecutionContext, Outputs, Step, Wanted};
use super::plan::{PlannedPrompt, Read};
use super::prompt::ScoredPrompt;
use super::row::Row;
use super::wave::Wave;
use super::{BackendError, GenerationError, Plan};
use crate::models::Model;
use crate::tokenizer::TokenId;

/// A request's context, while its waves go through it.
pub struct Batch<'a, C> {
    context: &'a mut C,
    plan: &'a Plan,
    model: &'a Model,
    /// Rows in the context.
    size: usize,
    /// Of the wave.
    prompts: Vec<ScoredPrompt>,
    /// What came after the wave's prompts: kept for the next wave of the same prompt.
    prefilled: Outputs,
    /// What came of the last token of each row.
    decoded: Outputs,
    /// Whether the rows have their prompts only.
    is_fresh: bool,
    cached_tokens: usize,
}

impl<'a, C: ExecutionContext> Batch<'a, C> {
    /// A batch without rows.
    pub fn new(context: &'a mut C, plan: &'a Plan, model: &'a Model) -> Self {
        Self {
            context,
            plan,
            model,
            size: 0,
            prompts: Vec::new(),
            prefilled: Outputs::default(),
            decoded: Outputs::default(),
            is_fresh: false,
            cached_tokens: 0,
        }
    }

    /// How many tokens of prompts were not computed, since earlier requests had.
    pub fn cached_tokens(&self) -> usize {
        self.cached_tokens
    }

    /// What the answer tells of the wave's prompts, in their order.
    pub fn prompts(&self) -> &[ScoredPrompt] {
        &self.prompts
    }

    /// What the last step brought.
    pub fn outputs(&self) -> &Outputs {
        if self.is_fresh { &self.prefilled } else { &self.decoded }
    }

    /// Makes each prompt of a wave a row, in their order, unless the context has it from the wave
    /// before.
    pub fn prefill(&mut self, wave: &Wave) -> Result<(), GenerationError> {
        self.is_fresh = true;
        if wave.goes_on() && self.model.card.rewinds {
            return Ok(());
        }
        let plan = self.plan;
        let prompts = &plan.prompts[wave.prompts.clone()];
        // At any time there is one row of logits for each row.
        self.decoded = Outputs::default();
        let unscored = |prompt| ScoredPrompt::unscored(plan, prompt);
        self.prompts = prompts.iter().map(unscored).collect();
        let whole = prompts.iter().map(|prompt| prompt.tokens.as_slice()).collect::<Vec<_>>();
        let generates = prompts.iter().any(|prompt| prompt.max_tokens > 0);
        if !plan.scores_prompts() {
            if generates {
                self.restart(&whole, self.wanted())?;
            }
            return Ok(());
        }
        let alternatives = plan.shown.logprobs.unwrap_or(0);
        match plan.read.top().filter(|read| generates && *read <= alternatives.max(1)) {
            // What generation reads is no more than what scoring does: one call has both.
            Some(top_k) => {
                let followed_by = whole.iter().map(|tokens| &tokens[1..]).collect::<Vec<_>>();
                self.restart(&whole, Wanted::Every { top_k, followed_by: &followed_by })?;
                let rows = (0..whole.len()).collect::<Vec<_>>();
                self.score(prompts, &rows, 0)
            }
            None => self.score_and_prefill(prompts, alternatives, generates),
        }
    }

    /// Reductions for the prompts, and then their last tokens for what generation reads.
    fn score_and_prefill(
        &mut self,
        prompts: &[PlannedPrompt],
        alternatives: usize,
        generates: bool,
    ) -> Result<(), GenerationError> {
        // A prompt of one token has nothing to score, and no row before its only token.
        let longer = prompts.iter().filter(|prompt| prompt.tokens.len() > 1).collect::<Vec<_>>();
        let but_last = longer
            .iter()
            .map(|prompt| &prompt.tokens[..prompt.tokens.len() - 1])
            .collect::<Vec<_>>();
        let followed_by = longer.iter().map(|prompt| &prompt.tokens[1..]).collect::<Vec<_>>();
        let mut next = 0;
        let rows = prompts
            .iter()
            .map(|prompt| {
                let row = next;
                next += usize::from(prompt.tokens.len() > 1);
                row
            })
            .collect::<Vec<_>>();
        if !longer.is_empty() {
            let top_k = alternatives.min(self.model.card.vocab_size as usize);
            self.restart(&but_last, Wanted::Every { top_k, followed_by: &followed_by })?;
        }
        self.score(prompts, &rows, 1)?;
        if !generates {
            return Ok(());
        }
        let last = prompts
            .iter()
            .map(|prompt| &prompt.tokens[prompt.tokens.len() - 1..])
            .collect::<Vec<_>>();
        if longer.is_empty() {
            return Ok(self.restart(&last, self.wanted())?);
        }
        // A row that begins anew may come after any.
        let parents = rows.iter().map(|row| *row.min(&(longer.len() - 1))).collect::<Vec<_>>();
        let starts = prompts.iter().map(|prompt| prompt.tokens.len() - 1).collect::<Vec<_>>();
        Ok(self.prefill_step(&last, Some(&parents), Some(&starts), self.wanted())?)
    }

    /// Scores prompts, all but whose last `left` tokens have just been computed in these rows.
    fn score(
        &mut self,
        prompts: &[PlannedPrompt],
        rows: &[usize],
        left: usize,
    ) -> Result<(), GenerationError> {
        let reductions = &self.prefilled.reductions;
        self.prompts = prompts
            .iter()
            .zip(rows)
            .map(|(prompt, row)| {
                let computed = prompt.tokens.len() - left;
                ScoredPrompt::new(self.plan, prompt, self.model, reductions, *row, computed)
            })
            .collect::<Result<_, _>>()?;
        Ok(())
    }

    /// What generation reads of a step.
    fn wanted(&self) -> Wanted<'static> {
        // A host that can't leave the sums out gives them in any case.
        let sums = self.plan.scores_tokens() || !self.model.card.takes(tensor::LOGSUMEXP);
        match self.plan.read {
            Read::Top(top_k) => Wanted::Last { top_k, sums, scale: None },
            Read::Nucleus { top_k, scale } => Wanted::Last { top_k, sums, scale: Some(scale) },
            Read::Whole => Wanted::Logits,
        }
    }

    /// Rows of these tokens, instead of those that there are.
    fn restart(&mut self, tokens: &[&[TokenId]], wanted: Wanted<'_>) -> Result<(), BackendError> {
        let zeros = vec![0; tokens.len()];
        let over = (self.size > 0).then_some(zeros.as_slice());
        self.prefill_step(tokens, over, over, wanted)
    }

    fn prefill_step(
        &mut self,
        tokens: &[&[TokenId]],
        parents: Option<&[usize]>,
        starts: Option<&[usize]>,
        wanted: Wanted<'_>,
    ) -> Result<(), BackendError> {
        let shares = self.size == 0 && self.model.card.takes(tensor::CACHE_SALT);
        let cache_salt = shares.then_some(self.plan.cache_salt.as_slice());
        let step = Step { tokens, parents, starts, wanted, cache_salt };
        self.context.compute(&step, &mut self.prefilled)?;
        self.prefilled.check(&step, self.model.card.vocab_size as usize)?;
        self.cached_tokens += self.prefilled.cached_tokens;
        self.size = tokens.len();
        Ok(())
    }

    /// Gives each row its last token; rows that aren't among these are dropped.
    pub fn decode(&mut self, wave: &Wave, rows: &mut [Row<'_>]) -> Result<(), BackendError> {
        let parents = rows.iter().map(|row| row.place).collect::<Vec<_>>();
        let same = parents.len() == self.size
            && parents.iter().enumerate().all(|(at, place)| at == *place);
        // Every row that the wave before has left begins with the prompt.
        let back = self.is_fresh && wave.goes_on() && self.model.card.rewinds;
        let starts =
            back.then(|| vec![self.plan.prompts[wave.prompts.start].tokens.len(); rows.len()]);
        if self.is_fresh && wave.candidates.end == self.plan.choices.candidates {
            // Nobody needs it any more.
            self.prefilled = Outputs::default();
        }
        let last = rows.iter().map(|row| [row.last]).collect::<Vec<[TokenId; 1]>>();
        let tokens = last.iter().map(<[TokenId; 1]>::as_slice).collect::<Vec<_>>();
        let step = Step {
            tokens: &tokens,
            parents: (!same).then_some(&parents),
            starts: starts.as_deref(),
            wanted: self.wanted(),
            cache_salt: None,
        };
        self.context.compute(&step, &mut self.decoded)?;
        self.decoded.check(&step, self.model.card.vocab_size as usize)?;
        self.size = tokens.len();
        self.is_fresh = false;
        for (place, row) in rows.iter_mut().enumerate() {
            row.place = place;
        }
        Ok(())
    }
}
