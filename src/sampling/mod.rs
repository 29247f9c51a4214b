//! From a row of logits to the next token: adjusting the logits, then temperature, min-p, top-k and
//! top-p, then a draw.
//!
//! Sums are in f64. The same logits, settings and seed give the same token on every machine: the
//! generator and the order of all sums are fixed here.

mod adjust;
mod nucleus;
mod params;
mod rng;

use spinfer_logits::Candidate;

pub use adjust::History;
pub use params::{Adjustments, SamplingParams, Temperature, TopP};
pub use rng::Rng;

use crate::tokenizer::TokenId;

/// Every logit of a row was NaN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the model produced NaN")]
pub struct NanLogits;

/// What is known of a row of logits.
#[derive(Debug, Clone, Copy)]
pub enum LogitsView<'a> {
    /// All of it.
    Whole(&'a [f32]),
    /// Its most likely tokens, the most likely first: at least as many as decide
    /// ([`SamplingParams::decisive`]).
    Top(&'a [Candidate]),
}

/// What one choice brings to the sampling of its next token.
#[derive(Debug)]
pub struct Chooser<'a> {
    /// Its random numbers.
    pub rng: &'a mut Rng,
    /// Its tokens so far; read only by penalties.
    pub history: &'a History,
    /// Tokens that must not be chosen now. Only for whole rows.
    pub banned: &'a [TokenId],
}

/// Chooses tokens for one request. Its buffers, of the vocabulary's size, are shared by its rows.
#[derive(Debug)]
pub struct Sampler {
    params: SamplingParams,
    adjusted: Vec<f32>,
    candidates: Vec<Candidate>,
    weights: Vec<f32>,
    nucleus: nucleus::Nucleus,
}

impl Sampler {
    /// A sampler; it allocates when it is first used.
    pub fn new(params: SamplingParams) -> Self {
        Self {
            params,
            adjusted: Vec::new(),
            candidates: Vec::new(),
            weights: Vec::new(),
            nucleus: nucleus::Nucleus::default(),
        }
    }

    /// Chooses one token. NaN among the logits counts as impossible.
    pub fn choose(
        &mut self,
        logits: LogitsView<'_>,
        chooser: &mut Chooser<'_>,
    ) -> Result<TokenId, NanLogits> {
        match logits {
            LogitsView::Top(candidates) => {
                let kept = self.params.decisive().unwrap_or(candidates.len()).min(candidates.len());
                self.choose_from_top(&candidates[..kept], chooser.rng)
            }
            LogitsView::Whole(logits)
                if self.params.adjustments.is_none() && chooser.banned.is_empty() =>
            {
                self.choose_from_whole(logits, chooser.rng)
            }
            LogitsView::Whole(logits) => {
                let mut adjusted = std::mem::take(&mut self.adjusted);
                adjusted.clear();
                adjusted.extend_from_slice(logits);
                self.params.adjustments.apply(chooser.history, &mut adjusted);
                for token in chooser.banned {
                    if let Some(logit) = adjusted.get_mut(*token as usize) {
                        *logit = f32::NEG_INFINITY;
                    }
                }
                let chosen = self.choose_from_whole(&adjusted, chooser.rng);
                self.adjusted = adjusted;
                chosen
            }
        }
    }

    /// Chooses one token where [`SamplingParams::draws_from_nucleus`]: from the most likely ones, which
    /// come in that order, if they hold the nucleus; else from `whole`, which is the row. `weight_sum` is
    /// [`spinfer_logits::weight_sum`] of the row at [`SamplingParams::scale`]. The same token either way.
    pub fn choose_from_nucleus<'l, E: From<NanLogits>>(
        &mut self,
        candidates: &[Candidate],
        weight_sum: f64,
        rng: &mut Rng,
        whole: impl FnOnce() -> Result<&'l [f32], E>,
    ) -> Result<TokenId, E> {
        let &(best, max) = candidates.first().ok_or(NanLogits)?;
        if max.is_infinite() {
            return Ok(best);
        }
        let (scale, top_p) = (self.params.scale(), self.params.top_p.get());
        let draw = rng.uniform();
        let logits = candidates.iter().map(|candidate| candidate.1).collect::<Vec<_>>();
        spinfer_logits::weights(&logits, max, scale, &mut self.weights);
        let weighed = self.weights.iter().copied().zip(candidates.iter().map(|top| top.0));
        if let Some(token) = self.nucleus.draw_from_top(weighed, weight_sum, top_p, draw) {
            return Ok(token);
        }
        spinfer_logits::weights(whole()?, max, scale, &mut self.weights);
        Ok(self.nucleus.draw(&self.weights, top_p, draw).unwrap_or(best))
    }

    fn choose_from_whole(&mut self, logits: &[f32], rng: &mut Rng) -> Result<TokenId, NanLogits> {
        if let Some(k) = self.params.top_k.filter(|_| !self.params.is_greedy()) {
            let mut candidates = std::mem::take(&mut self.candidates);
            spinfer_logits::top(logits, k, &mut candidates);
            let chosen = self.choose_from_top(&candidates, rng);
            self.candidates = candidates;
            return chosen;
        }
        let (best, max) = argmax(logits).ok_or(NanLogits)?;
        if self.params.is_greedy() || max.is_infinite() {
            return Ok(best);
        }
        spinfer_logits::weights(logits, max, self.params.scale(), &mut self.weights);
        Ok(self.draw(rng).unwrap_or(best))
    }

    /// Chooses among the most likely tokens, which come in that order.
    fn choose_from_top(
        &mut self,
        candidates: &[Candidate],
        rng: &mut Rng,
    ) -> Result<TokenId, NanLogits> {
        let &(best, max) = candidates.first().ok_or(NanLogits)?;
        if self.params.is_greedy() || max.is_infinite() {
            return Ok(best);
        }
        let scale = self.params.scale();
        let logits = candidates.iter().map(|candidate| candidate.1).collect::<Vec<_>>();
        spinfer_logits::weights(&logits, max, scale, &mut self.weights);
        Ok(self.draw(rng).map_or(best, |at| candidates[at as usize].0))
    }

    /// Draws from the weights, of which the highest is 1, and returns an index into them.
    fn draw(&mut self, rng: &mut Rng) -> Option<u32> {
        let min_p = self.params.min_p;
        if min_p > 0.0 {
            for weight in &mut self.weights {
                *weight = if *weight < min_p { 0.0 } else { *weight };
            }
        }
        let draw = rng.uniform();
        let top_p = self.params.top_p.get();
        if top_p < 1.0 {
            self.nucleus.draw(&self.weights, top_p, draw)
        } else {
            draw_from_all(&self.weights, draw)
        }
    }
}

/// The highest logit and where it first occurs; `None` when there is nothing but NaN.
fn argmax(logits: &[f32]) -> Option<(TokenId, f32)> {
    let max = spinfer_logits::max(logits);
    let first = logits.iter().position(|logit| *logit == max)?;
    Some((first as TokenId, max))
}

/// Draws in proportion to the weights. Whole blocks are passed over until the right one.
fn draw_from_all(weights: &[f32], draw: f64) -> Option<TokenId> {
    const BLOCK: usize = 256;
    let mut target = draw * spinfer_logits::sum(weights);
    let mut blocks = weights.chunks(BLOCK).zip((0..).step_by(BLOCK)).peekable();
    while let Some((block, first)) = blocks.next() {
        let mass = spinfer_logits::sum(block);
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
            ..Default::default()
        }
    }

    fn one(
        sampler: &mut Sampler,
        logits: LogitsView<'_>,
        rng: &mut Rng,
    ) -> Result<TokenId, NanLogits> {
        sampler.choose(logits, &mut Chooser { rng, history: &History::default(), banned: &[] })
    }

    fn choose(temperature: f64, top_p: f64, logits: &[f32], seed: u64) -> TokenId {
        let mut sampler = Sampler::new(params(temperature, top_p));
        one(&mut sampler, LogitsView::Whole(logits), &mut Rng::new(seed, 0)).unwrap()
    }

    /// Shares of each token over many draws.
    fn shares(temperature: f64, top_p: f64, logits: &[f32]) -> Vec<f64> {
        shares_under(params(temperature, top_p), logits)
    }

    fn shares_under(params: SamplingParams, logits: &[f32]) -> Vec<f64> {
        const DRAWS: u32 = 100_000;
        let mut sampler = Sampler::new(params);
        let mut rng = Rng::new(7, 0);
        let mut counts = vec![0_u32; logits.len()];
        for _ in 0..DRAWS {
            counts[one(&mut sampler, LogitsView::Whole(logits), &mut rng).unwrap() as usize] += 1;
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
        for row in [LogitsView::Whole(&[f32::NAN; 4]), LogitsView::Whole(&[]), LogitsView::Top(&[])]
        {
            assert_eq!(one(&mut sampler, row, &mut Rng::new(1, 0)), Err(NanLogits));
        }
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
                (0..50)
                    .map(|_| one(&mut sampler, LogitsView::Whole(&logits), &mut rng).unwrap())
                    .collect::<Vec<_>>()
            };
            assert_eq!(run(1, 0), run(1, 0));
            assert_ne!(run(1, 0), run(2, 0));
            assert_ne!(run(1, 0), run(1, 1));
        }
    }

    #[test]
    fn min_p_leaves_out_what_is_much_less_likely_than_the_best() {
        let logits = [0.0_f32, 2.0_f32.ln(), 5.0_f32.ln()];
        let with = |min_p| SamplingParams { min_p, ..params(1.0, 1.0) };
        near(&shares_under(with(0.1), &logits), &[0.125, 0.25, 0.625]);
        near(&shares_under(with(0.3), &logits), &[0.0, 2.0 / 7.0, 5.0 / 7.0]);
        near(&shares_under(with(1.0), &logits), &[0.0, 0.0, 1.0]);
    }

    #[test]
    fn top_k_keeps_the_best_and_top_p_counts_within_them() {
        let logits = [0.0_f32, 2.0_f32.ln(), 5.0_f32.ln()];
        let with = |top_k, top_p| SamplingParams { top_k: Some(top_k), ..params(1.0, top_p) };
        near(&shares_under(with(2, 1.0), &logits), &[0.0, 2.0 / 7.0, 5.0 / 7.0]);
        near(&shares_under(with(1, 1.0), &logits), &[0.0, 0.0, 1.0]);
        near(&shares_under(with(9, 1.0), &logits), &[0.125, 0.25, 0.625]);
        // 5/7 of the two best reach 0.7; of all three, 5/8 would not.
        near(&shares_under(with(2, 0.7), &logits), &[0.0, 0.0, 1.0]);
    }

    #[test]
    fn the_top_of_a_row_decides_as_the_whole_row_does() {
        let logits = (0..1000).map(|i| ((i * 37) % 101) as f32 / 20.0).collect::<Vec<_>>();
        for (temperature, top_k, min_p, top_p) in [
            (0.0, None, 0.0, 1.0),
            (1.0, Some(1), 0.0, 1.0),
            (1.0, Some(40), 0.5, 0.9),
            (2.0, Some(5), 0.0, 1.0),
        ] {
            let params = SamplingParams { top_k, min_p, ..params(temperature, top_p) };
            let mut top = Vec::new();
            // More than decide, as when log-probabilities are wanted too.
            spinfer_logits::top(&logits, params.decisive().unwrap() + 3, &mut top);
            let mut sampler = Sampler::new(params);
            for seed in 0..200 {
                let whole = one(&mut sampler, LogitsView::Whole(&logits), &mut Rng::new(seed, 0));
                let part = one(&mut sampler, LogitsView::Top(&top), &mut Rng::new(seed, 0));
                assert_eq!(whole, part, "{temperature} {top_k:?}");
            }
        }
    }

    #[test]
    fn adjusted_logits_decide_and_banned_tokens_never_come() {
        let logits = [1.0, 3.0, 2.0];
        let adjustments = Adjustments { bias: vec![(0, 5.0)], ..Default::default() };
        let params = SamplingParams { adjustments, ..params(0.0, 1.0) };
        assert_eq!(params.decisive(), None);
        let mut sampler = Sampler::new(params);
        assert_eq!(one(&mut sampler, LogitsView::Whole(&logits), &mut Rng::new(1, 0)), Ok(0));
        let mut rng = Rng::new(1, 0);
        let mut chooser = Chooser { rng: &mut rng, history: &History::default(), banned: &[0, 7] };
        assert_eq!(sampler.choose(LogitsView::Whole(&logits), &mut chooser), Ok(1));
    }
}
