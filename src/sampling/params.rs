//! The settings of sampling, each of which can only hold a value in its range.

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

/// How tokens are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SamplingParams {
    /// The softmax's temperature.
    pub temperature: Temperature,
    /// Nucleus sampling.
    pub top_p: TopP,
}

impl SamplingParams {
    /// Whether only the best token can be chosen, so that nothing is to be drawn.
    pub fn is_greedy(&self) -> bool {
        self.temperature.0 < Temperature::GREEDY_BELOW || self.top_p.0 == 0.0
    }
}
