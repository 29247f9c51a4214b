//! A prompt whose tokens have been computed: what the answer tells of it.

use std::rc::Rc;

use spinfer_logits::Candidate;

use super::context::Reductions;
use super::plan::PlannedPrompt;
use super::score::{Position, Score};
use super::{Plan, Token};
use crate::models::Model;
use crate::sampling::NanLogits;
use crate::tokenizer::{TokenId, Utf8Stream};

/// What the answer tells of a prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct ScoredPrompt {
    /// Its own tokens, where they are scored.
    pub tokens: Vec<Token>,
    /// The ids of all its tokens, where they are shown.
    pub ids: Option<Rc<[TokenId]>>,
}

impl ScoredPrompt {
    /// A prompt whose tokens are not scored.
    pub fn unscored(plan: &Plan, prompt: &PlannedPrompt) -> Self {
        let ids = plan.shown.token_ids.then(|| prompt.tokens.as_slice().into());
        Self { tokens: Vec::new(), ids }
    }

    /// The scores of a prompt's own tokens, from the reductions of its row after `computed` of its
    /// first tokens.
    pub fn new(
        plan: &Plan,
        prompt: &PlannedPrompt,
        model: &Model,
        reductions: &Reductions,
        row: usize,
        computed: usize,
    ) -> Result<Self, NanLogits> {
        let alternatives = plan.shown.logprobs.unwrap_or(0);
        let mut top: Vec<Candidate> = Vec::new();
        let mut tokens = Vec::new();
        for (at, offset) in (prompt.added..prompt.tokens.len()).zip(offsets(prompt, model)) {
            let id = prompt.tokens[at];
            let score = if at == prompt.added {
                Score { offset, logprob: None, top: Vec::new() }
            } else {
                // Rows are padded on the left; the token before this one decides.
                let position = reductions.positions - computed + at - 1;
                top.clear();
                top.extend(reductions.top(row, position));
                let log_sum_exp = reductions.log_sum_exp(row, position);
                let gathered = reductions.gathered(row, position);
                let score =
                    Position { top: &top, log_sum_exp }.in_prompt(id, gathered, alternatives)?;
                Score { offset, ..score }
            };
            tokens.push(Token { id, is_generated: false, score: Some(score) });
        }
        Ok(Self { tokens, ..Self::unscored(plan, prompt) })
    }
}

/// Where each of a prompt's own tokens begins, in characters.
fn offsets(prompt: &PlannedPrompt, model: &Model) -> Vec<usize> {
    let pieces = model.tokenizer.pieces();
    let own = &prompt.tokens[prompt.added..];
    let mut stream = Utf8Stream::default();
    let mut characters = 0;
    let offsets = own
        .iter()
        .map(|token| {
            let offset = characters;
            let mut text = String::new();
            stream.push(pieces.bytes(*token), &mut text);
            characters += text.chars().count();
            offset
        })
        .collect::<Vec<_>>();
    // Some vocabularies put a space before every text, which the text doesn't have.
    let more = characters.saturating_sub(prompt.characters);
    let leading = own.first().is_some_and(|token| pieces.bytes(*token).starts_with(b" "));
    let shift = if leading && !prompt.text.starts_with(b" ") { more.min(1) } else { 0 };
    offsets.into_iter().map(|offset| offset.saturating_sub(shift)).collect()
}
