//! The most likely tokens of a row, without sorting the row.

use std::cmp::Ordering;

use crate::lanes;

/// A token id and its logit.
pub type Candidate = (u32, f32);

/// The order of likelihood: the higher logit first, then the lower id. Total over logits that are
/// numbers, so that the first k are the same whatever the way they are found.
fn more_likely(a: &Candidate, b: &Candidate) -> Ordering {
    b.1.partial_cmp(&a.1).unwrap_or(Ordering::Equal).then(a.0.cmp(&b.0))
}

/// Logits that are passed over together when none of them is high enough.
const BLOCK: usize = 64;

/// Up to this many are kept in order while the row is read; more are selected from the whole row.
const KEPT_IN_ORDER: usize = 64;

/// Replaces `found` with the `k` most likely tokens of a row, the most likely first; fewer where
/// the row has fewer logits that are numbers.
pub fn top(logits: &[f32], k: usize, found: &mut Vec<Candidate>) {
    found.clear();
    match k {
        0 => {}
        1..=KEPT_IN_ORDER => keep_in_order(logits, k, found),
        _ => select(logits, k, found),
    }
}

fn keep_in_order(logits: &[f32], k: usize, found: &mut Vec<Candidate>) {
    for (block, first) in logits.chunks(BLOCK).zip((0..).step_by(BLOCK)) {
        if found.len() == k && !lanes::any_above(block, found[k - 1].1) {
            continue;
        }
        for candidate in numbers(block, first) {
            // Later ids come after equal logits, so only a higher one displaces the last.
            if found.len() == k {
                if candidate.1 <= found[k - 1].1 {
                    continue;
                }
                found.pop();
            }
            let place = found.partition_point(|other| other.1 >= candidate.1);
            found.insert(place, candidate);
        }
    }
}

/// Collects what may be among the k best, and throws out what isn't each time that there are twice as
/// many: after that nothing below the k-th is looked at.
fn select(logits: &[f32], k: usize, found: &mut Vec<Candidate>) {
    let mut limit = None;
    for (block, first) in logits.chunks(BLOCK).zip((0..).step_by(BLOCK)) {
        match limit {
            // Later ids come after equal logits, so only a higher one displaces another.
            Some(limit) if !lanes::any_above(block, limit) => continue,
            Some(limit) => found.extend(numbers(block, first).filter(|(_, logit)| *logit > limit)),
            None => found.extend(numbers(block, first)),
        }
        if found.len() >= 2 * k {
            keep_best(k, found);
            limit = found.get(k - 1).map(|(_, logit)| *logit);
        }
    }
    keep_best(k, found);
    found.sort_unstable_by(more_likely);
}

/// Keeps the k best; the last of them comes last, and the others in any order.
fn keep_best(k: usize, found: &mut Vec<Candidate>) {
    if k < found.len() {
        found.select_nth_unstable_by(k - 1, more_likely);
        found.truncate(k);
    }
}

/// What of a part of a row that begins at `first` is no NaN.
fn numbers(part: &[f32], first: u32) -> impl Iterator<Item = Candidate> {
    (first..).zip(part.iter().copied()).filter(|(_, logit)| !logit.is_nan())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(logits: &[f32], k: usize) -> Vec<Candidate> {
        let mut found = vec![(9, 9.0)];
        top(logits, k, &mut found);
        found
    }

    #[test]
    fn agrees_with_sorting() {
        let mut state = 7_u32;
        for size in [1_usize, 63, 64, 65, 1000, 5000] {
            for values in [1, 3, 1000] {
                let logits = (0..size)
                    .map(|_| {
                        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        ((state >> 8) % values) as f32 - 2.0
                    })
                    .collect::<Vec<_>>();
                let mut sorted = (0..).zip(logits.iter().copied()).collect::<Vec<Candidate>>();
                sorted.sort_by(more_likely);
                for k in [0, 1, 2, 20, 64, 65, 900, 6000] {
                    assert_eq!(of(&logits, k), sorted[..k.min(size)], "{size} {values} {k}");
                }
            }
        }
    }

    #[test]
    fn zeros_of_both_signs_are_equal() {
        for k in [2, 100] {
            assert_eq!(of(&[-0.0, 0.0], k).iter().map(|c| c.0).collect::<Vec<_>>(), [0, 1]);
        }
    }

    #[test]
    fn nan_is_never_among_them() {
        let logits = [f32::NAN, 1.0, f32::NAN, f32::NEG_INFINITY, f32::INFINITY];
        let expected = [(4, f32::INFINITY), (1, 1.0), (3, f32::NEG_INFINITY)];
        for k in [3, 4, 5, 100] {
            assert_eq!(of(&logits, k), expected);
        }
        assert_eq!(of(&[f32::NAN; 3], 2), []);
    }
}
