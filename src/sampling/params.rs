//! The settings of sampling. What has a range can only hold a value in it.

use crate::tokenizer::TokenId;

/// The softmax's temperature, from 0 (the best token always) to 2.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Temperature(f64);

impl Temperature {
    /// What [`Temperature::new`] takes, in words.
    pub const EXPECTED: &str = "a number from 0 to 2";

    /// Below this, all but the best token have no share that a float can show; dividing by it could
    /// overflow.
    const GREEDY_BELOW: f64 = 1e-5;

    /// `None` outside the range.
    pub fn new(value: f64) -> Option<Self> {
        (0.0..=2.0).contains(&value).then_some(Self(value))
    }

    /// The value.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl Default for Temperature {
    fn default() -> Self {
        Self(1.0)
    }
}

/// The share of probability that the tokens to draw from must reach, from 0 (the best token alone)
/// to 1 (all tokens).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TopP(f64);

impl TopP {
    /// What [`TopP::new`] takes, in words.
    pub const EXPECTED: &str = "a number from 0 to 1";

    /// `None` outside the range.
    pub fn new(value: f64) -> Option<Self> {
        (0.0..=1.0).contains(&value).then_some(Self(value))
    }

    /// The value.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl Default for TopP {
    fn default() -> Self {
        Self(1.0)
    }
}

/// How tokens are chosen. The steps are vLLM's, in its order: adjusting logits, temperature, `min_p`,
/// `top_k`, `top_p`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SamplingParams {
    /// The softmax's temperature.
    pub temperature: Temperature,
    /// Nucleus sampling.
    pub top_p: TopP,
    /// Only so many of the likeliest tokens, at least 1. `None`: all.
    pub top_k: Option<usize>,
    /// Only tokens that are at least so likely, as a share of the likeliest one's probability: 0 to
    /// 1.
    pub min_p: f32,
    /// What is done to the logits first.
    pub adjustments: Adjustments,
}

impl SamplingParams {
    /// Whether only the best token can be chosen, so that nothing is to be drawn.
    pub fn is_greedy(&self) -> bool {
        self.temperature.0 < Temperature::GREEDY_BELOW
            || self.top_p.0 == 0.0
            || self.top_k == Some(1)
    }

    /// Whether what is drawn is drawn from the smallest set of the likeliest tokens that holds a share of
    /// the model's own probability, and from nothing else.
    pub fn draws_from_nucleus(&self) -> bool {
        self.adjustments.is_none()
            && !self.is_greedy()
            && self.top_k.is_none()
            && self.min_p == 0.0
            && self.top_p.0 < 1.0
    }

    /// What logits are multiplied by before they are drawn from.
    pub fn scale(&self) -> f32 {
        1.0 / self.temperature.0 as f32
    }

    /// How many of the likeliest tokens decide which one is chosen. `None`: all of them.
    pub fn decisive(&self) -> Option<usize> {
        match () {
            () if !self.adjustments.is_none() => None,
            () if self.is_greedy() => Some(1),
            () => self.top_k,
        }
    }
}

/// Changes to the model's logits, before anything else.
#[derive(Debug, Clone, PartialEq)]
pub struct Adjustments {
    /// Added to the logits of these tokens.
    pub bias: Vec<(TokenId, f32)>,
    /// Subtracted for each time that a token was generated.
    pub frequency_penalty: f32,
    /// Subtracted when a token was generated at all.
    pub presence_penalty: f32,
    /// Divides positive logits, and multiplies others, of tokens in the prompt or generated; above 0,
    /// and 1 has no effect.
    pub repetition_penalty: f32,
}

impl Default for Adjustments {
    fn default() -> Self {
        Self {
            bias: Vec::new(),
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            repetition_penalty: 1.0,
        }
    }
}

impl Adjustments {
    /// Whether nothing is changed.
    pub fn is_none(&self) -> bool {
        self.bias.is_empty() && !self.need_history()
    }

    /// Whether it matters what came before.
    pub fn need_history(&self) -> bool {
        self.frequency_penalty != 0.0
            || self.presence_penalty != 0.0
            || self.repetition_penalty != 1.0
    }
}
