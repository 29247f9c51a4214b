//! One candidate while it is generated.

use std::collections::VecDeque;
use std::rc::Rc;

use serde::Serialize;

use super::prompt::ScoredPrompt;
use super::score::Score;
use super::stop::StopFilter;
use super::wave::Wave;
use super::{Delta, Plan, Token};
use crate::models::Model;
use crate::sampling::{Chooser, History, Rng};
use crate::tokenizer::{TokenId, Utf8Stream};

/// Why a choice ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FinishReason {
    /// The model ended it, or a stop string or token came up.
    Stop,
    /// It has all the tokens that it may have.
    Length,
}

/// A candidate's state.
#[derive(Debug)]
pub struct Row<'a> {
    plan: &'a Plan,
    model: &'a Model,
    /// The candidate's place in the answer, if none is better.
    pub index: usize,
    /// Its prompt's place in the request.
    pub prompt: usize,
    /// Its place in the batch: that of its prompt at first.
    pub place: usize,
    /// The token that the model hasn't seen yet.
    pub last: TokenId,
    rng: Rng,
    history: History,
    generated: usize,
    finished: bool,
    utf8: Utf8Stream,
    stop: StopFilter<'a>,
    /// Tokens that wait for their text to be let out.
    waiting: VecDeque<Waiting>,
    /// Bytes of the candidate's text so far, and of those the ones let out.
    decoded: usize,
    released: usize,
    /// Whole characters of the prompt's and the candidate's text so far.
    characters: usize,
    /// The ids of the prompt, until they are shown.
    prompt_ids: Option<Rc<[TokenId]>>,
    logprob_sum: f64,
}

#[derive(Debug)]
struct Waiting {
    /// Where in the candidate's text the token begins, in bytes.
    start: usize,
    token: Token,
}

impl<'a> Row<'a> {
    /// The rows of a wave, before their first token; `scored` are its prompts.
    pub fn all(
        plan: &'a Plan,
        wave: &Wave,
        scored: &[ScoredPrompt],
        model: &'a Model,
    ) -> Vec<Self> {
        let candidates =
            |place: usize| wave.candidates.clone().map(move |candidate| (place, candidate));
        (0..wave.prompts.len())
            .flat_map(candidates)
            .map(|(place, candidate)| {
                let prompt = wave.prompts.start + place;
                let tokens = &plan.prompts[prompt].tokens;
                let remembers = plan.sampling.adjustments.need_history();
                Self {
                    plan,
                    model,
                    index: prompt * plan.choices.candidates + candidate,
                    prompt,
                    place,
                    last: 0,
                    rng: plan.rng(prompt, candidate),
                    history: if remembers { History::new(tokens) } else { History::default() },
                    generated: 0,
                    finished: false,
                    utf8: Utf8Stream::default(),
                    stop: StopFilter::new(&plan.stops.texts),
                    waiting: VecDeque::new(),
                    decoded: 0,
                    released: 0,
                    characters: plan.prompts[prompt].characters,
                    prompt_ids: scored[place].ids.clone(),
                    logprob_sum: 0.0,
                }
            })
            .collect()
    }

    /// The delta before the first token, where there is something to say: the prompt, or that no
    /// token may follow.
    pub fn open(&mut self, scored: &ScoredPrompt) -> Option<Delta> {
        let mut text = String::new();
        if self.plan.shown.echo {
            self.utf8.push(&self.plan.prompts[self.prompt].text, &mut text);
        }
        let finish = (self.limit() == 0).then_some(FinishReason::Length);
        if finish.is_none() && !self.plan.shown.echo {
            return None;
        }
        Some(self.delta(text, scored.tokens.clone(), finish))
    }

    fn limit(&self) -> usize {
        self.plan.prompts[self.prompt].max_tokens
    }

    /// What the sampling of the next token needs of this candidate.
    pub fn chooser(&mut self) -> Chooser<'_> {
        let early = self.generated < self.plan.stops.min_tokens;
        Chooser {
            rng: &mut self.rng,
            history: &self.history,
            banned: if early { &self.plan.stops.tokens } else { &[] },
        }
    }

    /// Takes the next token, with its score where tokens are scored. `None`: nothing of it can be
    /// let out yet.
    pub fn accept(&mut self, token: TokenId, score: Option<Score>) -> Option<Delta> {
        self.last = token;
        self.generated += 1;
        if self.plan.sampling.adjustments.need_history() {
            self.history.push(token);
        }
        self.logprob_sum += score.as_ref().and_then(|score| score.logprob).map_or(0.0, f64::from);
        self.wait(token, score);

        let ends = self.plan.stops.tokens.binary_search(&token).is_ok();
        let mut text = String::new();
        if !ends {
            self.utf8.push(self.model.tokenizer.pieces().visible(token), &mut text);
        }
        self.decoded += text.len();
        self.characters += text.chars().count();
        let mut released = String::new();
        let armed = self.generated > self.plan.stops.min_tokens;
        let stopped = self.stop.push(&text, armed, &mut released);
        let finish = match () {
            () if stopped || ends => Some(FinishReason::Stop),
            () if self.generated == self.limit() => Some(FinishReason::Length),
            () => None,
        };
        if finish.is_some() && !stopped {
            released.push_str(&self.stop.finish());
        }
        self.released += released.len();
        let whole =
            !stopped && (finish.is_some() || (self.stop.is_empty() && self.utf8.is_empty()));
        let tokens = self.release(whole);
        if released.is_empty() && tokens.is_empty() && finish.is_none() {
            return None;
        }
        if stopped {
            // An unfinished character comes after the cut.
            self.utf8 = Utf8Stream::default();
        }
        Some(self.delta(released, tokens, finish))
    }

    /// Keeps a token that the answer shows until its text is let out.
    fn wait(&mut self, id: TokenId, score: Option<Score>) {
        let shown = &self.plan.shown;
        let score = score
            .filter(|_| shown.logprobs.is_some())
            .map(|score| Score { offset: self.characters, ..score });
        if score.is_some() || shown.token_ids {
            let token = Token { id, is_generated: true, score };
            self.waiting.push_back(Waiting { start: self.decoded, token });
        }
    }

    /// The tokens that begin in what has been let out; all of them when nothing is held back.
    fn release(&mut self, all: bool) -> Vec<Token> {
        let out = |waiting: &Waiting| all || waiting.start < self.released;
        let count = self.waiting.iter().take_while(|waiting| out(waiting)).count();
        self.waiting.drain(..count).map(|waiting| waiting.token).collect()
    }

    fn delta(
        &mut self,
        mut text: String,
        tokens: Vec<Token>,
        finish: Option<FinishReason>,
    ) -> Delta {
        if finish.is_some() {
            self.finished = true;
            self.utf8.finish(&mut text);
            text.push_str(&self.plan.shown.suffix);
        }
        Delta {
            index: self.index,
            text,
            tokens,
            prompt_ids: self.prompt_ids.take(),
            finish,
            mean_logprob: self.logprob_sum / self.generated.max(1) as f64,
        }
    }

    /// Whether the candidate has ended.
    pub fn finished(&self) -> bool {
        self.finished
    }
}
