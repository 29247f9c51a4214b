//! From a row of logits to the next token: temperature, then top-p, then a draw.
//!
//! Sums are in f64. The same logits, settings and seed give the same token on every machine: the
//! generator and the order of all sums are fixed here.

mod lanes;
mod nucleus;
mod params;
mod rng;

pub use params::{SamplingParams, Temperature, TopP};
pub use rng::Rng;

use crate::tokenizer::TokenId;

/// Every logit of a row was NaN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the model produced NaN")]
pub struct NanLogits;

/// Chooses tokens for one request. Its buffers, of the vocabulary's size, are shared by its rows;
/// each row brings its own generator.
#[derive(Debug)]
pub struct Sampler {
    params: SamplingParams,
    weights: Vec<f32>,
    nucleus: nucleus::Nucleus,
}

impl Sampler {
    /// A sampler; it allocates when it is first used.
    pub fn new(params: SamplingParams) -> Self {
        Self { params, weights: Vec::new(), nucleus: nucleus::Nucleus::default() }
    }

    /// Chooses one token. NaN among the logits counts as impossible.
    pub fn choose(&mut self, logits: &[f32], rng: &mut Rng) -> Result<TokenId, NanLogits> {
        let (best, max) = argmax(logits).ok_or(NanLogits)?;
        if self.params.is_greedy() || max.is_infinite() {
            return Ok(best);
        }
        let scale = 1.0 / self.params.temperature.get() as f32;
        lanes::weights(logits, max, scale, &mut self.weights);
        let draw = rng.uniform();
        let top_p = self.params.top_p.get();
        let chosen = if top_p < 1.0 {
            self.nucleus.draw(&self.weights, top_p, draw)
        } else {
            draw_from_all(&self.weights, draw)
        };
        Ok(chosen.unwrap_or(best))
    }
}

/// The highest logit and where it first occurs; `None` when there is nothing but NaN.
fn argmax(logits: &[f32]) -> Option<(TokenId, f32)> {
    let max = lanes::max(logits);
    let first = logits.iter().position(|logit| *logit == max)?;
    Some((first as TokenId, max))
}

/// Draws in proportion to the weights. Whole blocks are passed over until the right one.
fn draw_from_all(weights: &[f32], draw: f64) -> Option<TokenId> {
    const BLOCK: usize = 256;
    let mut target = draw * lanes::sum(weights);
    let mut blocks = weights.chunks(BLOCK).zip((0..).step_by(BLOCK)).peekable();
    while let Some((block, first)) = blocks.next() {
        let mass = lanes::sum(block);
        if mass > target || blocks.peek().is_none() {
            return at_cumulative(block.iter().copied().zip(first..), target);
        }
        target -= mass;
    }
    None
}

/// The token in whose share of the running sum `target` falls; the last possible one when rounding
/// has pushed `target` past the end.
fn at_cumulative(weights: impl Iterator<Item = (f32, TokenId)>, target: f64) -> Option<TokenId> {
    let mut sum = 0.0;
    let mut last = None;
    for (weight, id) in weights {
        if weight > 0.0 {
            sum += f64::from(weight);
            last = Some(id);
            if sum > target {
                break;
            }
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(temperature: f64, top_p: f64) -> SamplingParams {
        SamplingParams {
            temperature: Temperature::new(temperature).unwrap(),
            top_p: TopP::new(top_p).unwrap(),
        }
    }

    fn choose(temperature: f64, top_p: f64, logits: &[f32], seed: u64) -> TokenId {
        Sampler::new(params(temperature, top_p)).choose(logits, &mut Rng::new(seed, 0)).unwrap()
    }

    /// Shares of each token over many draws.
    fn shares(temperature: f64, top_p: f64, logits: &[f32]) -> Vec<f64> {
        const DRAWS: u32 = 100_000;
        let mut sampler = Sampler::new(params(temperature, top_p));
        let mut rng = Rng::new(7, 0);
        let mut counts = vec![0_u32; logits.len()];
        for _ in 0..DRAWS {
            counts[sampler.choose(logits, &mut rng).unwrap() as usize] += 1;
        }
        counts.into_iter().map(|count| f64::from(count) / f64::from(DRAWS)).collect()
    }

    #[track_caller]
    fn near(found: &[f64], expected: &[f64]) {
        for (a, b) in found.iter().zip(expected) {
            assert!((a - b).abs() < 0.01, "{found:?} is not {expected:?}");
        }
    }

    #[test]
    fn greedy_takes_the_lowest_of_the_best() {
        assert_eq!(choose(0.0, 1.0, &[1.0, 3.0, 3.0, 2.0], 1), 1);
        assert_eq!(choose(1.0, 0.0, &[1.0, 3.0, 3.0, 2.0], 1), 1);
        assert_eq!(choose(1e-30, 1.0, &[1.0, 3.0, 3.0, 2.0], 1), 1);
        assert_eq!(choose(0.0, 1.0, &[-1.0, f32::NEG_INFINITY], 1), 0);
    }

    #[test]
    fn nan_is_never_chosen() {
        for seed in 0..100 {
            assert_eq!(choose(2.0, 1.0, &[f32::NAN, 1.0, f32::NAN], seed), 1);
            assert_eq!(choose(2.0, 0.9, &[f32::NAN, 1.0, f32::NAN], seed), 1);
        }
        let mut sampler = Sampler::new(params(1.0, 1.0));
        assert_eq!(sampler.choose(&[f32::NAN; 4], &mut Rng::new(1, 0)), Err(NanLogits));
        assert_eq!(sampler.choose(&[], &mut Rng::new(1, 0)), Err(NanLogits));
    }

    #[test]
    fn infinite_logits_do_not_derail() {
        assert_eq!(choose(1.0, 1.0, &[0.0, f32::INFINITY, 1.0], 1), 1);
        assert_eq!(choose(1.0, 1.0, &[f32::NEG_INFINITY; 3], 1), 0);
        for seed in 0..100 {
            assert_ne!(choose(2.0, 1.0, &[0.0, f32::NEG_INFINITY, 1.0], seed), 1);
        }
    }

    #[test]
    fn shares_follow_the_softmax() {
        let logits = [0.0_f32, 2.0_f32.ln(), 5.0_f32.ln()];
        near(&shares(1.0, 1.0, &logits), &[0.125, 0.25, 0.625]);
        near(&shares(2.0, 1.0, &logits), &[0.2149, 0.3040, 0.4811]);
        near(&shares(0.5, 1.0, &logits), &[1.0 / 30.0, 4.0 / 30.0, 25.0 / 30.0]);
    }

    #[test]
    fn top_p_keeps_the_smallest_set_that_reaches_it() {
        let logits = [0.0_f32, 2.0_f32.ln(), 5.0_f32.ln()];
        near(&shares(1.0, 0.6, &logits), &[0.0, 0.0, 1.0]);
        near(&shares(1.0, 0.7, &logits), &[0.0, 2.0 / 7.0, 5.0 / 7.0]);
        near(&shares(1.0, 0.9, &logits), &[0.125, 0.25, 0.625]);
    }

    #[test]
    fn the_same_seed_chooses_the_same_tokens() {
        let logits = (0..1000).map(|i| ((i * 37) % 101) as f32 / 20.0).collect::<Vec<_>>();
        for top_p in [1.0, 0.8] {
            let run = |seed, stream| {
                let mut sampler = Sampler::new(params(1.0, top_p));
                let mut rng = Rng::new(seed, stream);
                (0..50).map(|_| sampler.choose(&logits, &mut rng).unwrap()).collect::<Vec<_>>()
            };
            assert_eq!(run(1, 0), run(1, 0));
            assert_ne!(run(1, 0), run(2, 0));
            assert_ne!(run(1, 0), run(1, 1));
        }
    }
}
