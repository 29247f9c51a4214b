//! Top-p without sorting the vocabulary.

use std::cmp::Ordering;

use super::at_cumulative;
use crate::tokenizer::TokenId;

/// A token's weight and id. Heavier comes first, then the lower id: a total order, so that the
/// nucleus is the same set whatever the way it is found.
type Candidate = (f32, TokenId);

fn heavier_first(a: &Candidate, b: &Candidate) -> Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}

/// Tokens that are passed over together when none of them is heavy enough.
const BLOCK: usize = 16;

/// Below this many candidates, sorting is the quickest way on.
const SORTED: usize = 64;

/// A weight as an integer, so that sums don't depend on the order in which a selection leaves its
/// elements. A weight is at most 1, and fewer than 2^20 tokens make a vocabulary.
fn units(weight: f64) -> u64 {
    (weight * (1_u64 << 44) as f64) as u64
}

/// The buffers of the search.
#[derive(Debug, Default)]
pub struct Nucleus {
    candidates: Vec<Candidate>,
    split: Vec<Candidate>,
}

impl Nucleus {
    /// Draws from the smallest set of the heaviest tokens that holds at least `top_p` of the sum of
    /// all weights. `draw` is in `0..1`.
    pub fn draw(&mut self, weights: &[f32], top_p: f64, draw: f64) -> Option<TokenId> {
        let total = spinfer_logits::sum(weights);
        self.gather(weights, total, top_p);
        let last = self.last(top_p * total)?;
        self.draw_up_to(&last, draw)
    }

    /// The same where only the heaviest tokens are known, heaviest first, and the sum of all weights.
    /// `None` when they may not hold the nucleus.
    pub fn draw_from_top(
        &mut self,
        heaviest: impl Iterator<Item = Candidate>,
        total: f64,
        top_p: f64,
        draw: f64,
    ) -> Option<TokenId> {
        self.candidates.clear();
        self.candidates.extend(heaviest);
        let target = units(top_p * total);
        let mut sum = 0;
        let reached = self.candidates.iter().position(|(weight, _)| {
            sum += units(f64::from(*weight));
            sum >= target
        })?;
        let last = self.candidates[reached];
        // Others that weigh as much as the lightest that is known may be missing, or a trifle more: a
        // higher logit need not weigh more to the last bit.
        if last.0 <= self.candidates.last()?.0 * (1.0 + 1e-5) {
            return None;
        }
        self.candidates.sort_unstable_by_key(|(_, id)| *id);
        // Of equal weights, the lower ids come first, which the order of the logits need not say.
        let last = self.last(top_p * total)?;
        self.draw_up_to(&last, draw)
    }

    /// Draws from the candidates, which are in the order of their ids, up to the lightest.
    fn draw_up_to(&self, last: &Candidate, draw: f64) -> Option<TokenId> {
        let inside = |candidate: &&Candidate| heavier_first(candidate, last) != Ordering::Greater;
        let nucleus = || self.candidates.iter().filter(inside).copied();
        let mass = nucleus().map(|(weight, _)| f64::from(weight)).sum::<f64>();
        at_cumulative(nucleus(), draw * mass)
    }

    /// Keeps the tokens that may be in the nucleus, by id. All those that weigh no more than
    /// `(1 - top_p) * total / V` hold at most `(1 - top_p) * total` together, so the others reach
    /// `top_p` without them.
    fn gather(&mut self, weights: &[f32], total: f64, top_p: f64) {
        // Rounded down a little: a candidate too many costs nothing, one too few would be wrong.
        let light = ((1.0 - top_p) * total / weights.len() as f64 * 0.999) as f32;
        self.candidates.clear();
        for (block, first) in weights.chunks(BLOCK).zip((0..).step_by(BLOCK)) {
            if spinfer_logits::any_above(block, light) {
                let heavy =
                    block.iter().copied().zip(first..).filter(|(weight, _)| *weight > light);
                self.candidates.extend(heavy);
            }
        }
    }

    /// The lightest token of the nucleus: halves the candidates around their middle, and goes on
    /// in the half where the sum passes `target`.
    fn last(&mut self, target: f64) -> Option<Candidate> {
        self.split.clone_from(&self.candidates);
        let mut range = self.split.as_mut_slice();
        let target = units(target);
        let mut sum = 0;
        while range.len() > SORTED {
            let middle = range.len() / 2;
            range.select_nth_unstable_by(middle, heavier_first);
            let (heavy, light) = range.split_at_mut(middle);
            let mass = heavy.iter().map(|(weight, _)| units(f64::from(*weight))).sum::<u64>();
            if sum + mass >= target {
                range = heavy;
            } else {
                sum += mass;
                range = light;
            }
        }
        range.sort_unstable_by(heavier_first);
        let reached = range.iter().position(|(weight, _)| {
            sum += units(f64::from(*weight));
            sum >= target
        });
        match reached {
            Some(at) => range.get(at).copied(),
            None => range.last().copied(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same by sorting everything.
    fn by_sorting(weights: &[f32], target: f64) -> Candidate {
        let mut all = weights.iter().copied().zip(0..).collect::<Vec<Candidate>>();
        all.sort_by(heavier_first);
        let mut sum = 0.0;
        for candidate in &all {
            sum += f64::from(candidate.0);
            if sum >= target {
                return *candidate;
            }
        }
        *all.last().unwrap()
    }

    #[test]
    fn agrees_with_sorting_on_many_shapes() {
        let mut state = 1_u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32
        };
        let mut nucleus = Nucleus::default();
        for size in [1, 2, 63, 64, 65, 1000, 5000] {
            for steepness in [0, 1, 4, 20] {
                // Powers of two: sums are exact in any order, so that both ways must agree.
                let weights = (0..size)
                    .map(|_| 0.5_f32.powi((random() * steepness as f32) as i32))
                    .collect::<Vec<_>>();
                let total = weights.iter().map(|weight| f64::from(*weight)).sum::<f64>();
                for top_p in [1e-9, 0.1, 0.5, 0.9, 0.999, 0.999_999_9] {
                    nucleus.gather(&weights, total, top_p);
                    let found = nucleus.last(top_p * total).unwrap();
                    let expected = by_sorting(&weights, top_p * total);
                    assert_eq!(found, expected, "{size} {steepness} {top_p}");
                }
            }
        }
    }

    #[test]
    fn the_heaviest_tokens_give_what_all_give_or_nothing() {
        let mut state = 7_u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32
        };
        let mut nucleus = Nucleus::default();
        let mut known = 0;
        for round in 0..400 {
            // Coarse steps, so that many weigh the same.
            let steepness = 1 + round % 20;
            let weights = (0..2000)
                .map(|_| (-(random() * steepness as f32 * 4.0).round() / 4.0).exp())
                .collect::<Vec<f32>>();
            let mut heaviest = weights.iter().copied().zip(0..).collect::<Vec<Candidate>>();
            heaviest.sort_by(heavier_first);
            heaviest.truncate(300);
            let total = spinfer_logits::sum(&weights);
            let (top_p, draw) = (f64::from(random()), f64::from(random()));
            let whole = nucleus.draw(&weights, top_p, draw);
            let top = nucleus.draw_from_top(heaviest.into_iter(), total, top_p, draw);
            assert!(top.is_none() || top == whole, "{steepness} {top_p}");
            known += usize::from(top.is_some());
        }
        assert!((100..400).contains(&known), "{known} of 400 were within the heaviest");
    }

    #[test]
    fn draws_cover_the_nucleus_and_nothing_else() {
        let weights = [1.0, 4.0, 0.5, 4.0, 0.5];
        let mut nucleus = Nucleus::default();
        let mut draw = |at| nucleus.draw(&weights, 0.9, at).unwrap();
        assert_eq!(draw(0.0), 0);
        assert_eq!(draw(0.2), 1);
        assert_eq!(draw(0.999_999), 3);
    }
}
