//! One choice while it is generated.

use serde::Serialize;

use super::stop::StopFilter;
use super::{Delta, Plan};
use crate::models::Model;
use crate::sampling::Rng;
use crate::tokenizer::{TokenId, Utf8Stream};

/// Why a choice ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FinishReason {
    /// The model ended it, or a stop string came up.
    Stop,
    /// It has all the tokens that it may have.
    Length,
}

/// A choice's state.
#[derive(Debug)]
pub struct Row {
    index: usize,
    /// Its place in the batch: that of its prompt at first.
    pub place: usize,
    /// Its random numbers.
    pub rng: Rng,
    /// The token that the model hasn't seen yet.
    pub last: TokenId,
    left: usize,
    utf8: Utf8Stream,
    stop: StopFilter,
}

impl Row {
    /// The rows of all choices, before their first token.
    pub fn all(plan: &Plan) -> Vec<Self> {
        let choices =
            |(place, prompt)| (0..plan.choices).map(move |choice| (place, prompt, choice));
        plan.prompts
            .iter()
            .enumerate()
            .flat_map(choices)
            .map(|(place, prompt, choice)| Self {
                index: place * plan.choices + choice,
                place,
                rng: Rng::new(plan.seed, choice as u64),
                last: 0,
                left: prompt.max_tokens,
                utf8: Utf8Stream::default(),
                stop: StopFilter::new(&plan.stop),
            })
            .collect()
    }

    /// The delta of a choice that may have no tokens.
    pub fn nothing(&self) -> Delta {
        Delta { index: self.index, text: String::new(), finish: Some(FinishReason::Length) }
    }

    /// Takes the next token.
    pub fn accept(&mut self, token: TokenId, model: &Model) -> Delta {
        self.last = token;
        self.left -= 1;
        let ends = model.card.end_of_generation.contains(&token);
        let mut text = String::new();
        if !ends {
            self.utf8.push(model.tokenizer.pieces().visible(token), &mut text);
        }
        let mut released = String::new();
        let stopped = self.stop.push(&text, &mut released);
        let finish = match () {
            () if stopped || ends => Some(FinishReason::Stop),
            () if self.left == 0 => Some(FinishReason::Length),
            () => None,
        };
        if finish.is_some() {
            self.left = 0;
            if !stopped {
                released.push_str(&self.stop.finish());
                self.utf8.finish(&mut released);
            }
        }
        Delta { index: self.index, text: released, finish }
    }

    /// Whether the choice has ended.
    pub fn finished(&self) -> bool {
        self.left == 0
    }
}
