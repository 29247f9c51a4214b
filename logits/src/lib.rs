//! Reductions over a row of logits: the highest ([`max`]), the k highest ([`top`]), and the
//! logarithm of the softmax's denominator ([`log_sum_exp`]), from which log-probabilities come
//! ([`log_probability`]).
//!
//! The component and the host both use them, and get the same bits: every sum is in f64 and in an
//! order that is fixed here, and nothing depends on the machine's own `exp`.
//!
//! NaN among logits counts as impossible, like negative infinity.

mod lanes;
mod top;

pub use lanes::{any_above, max, sum, weights};
pub use top::{Candidate, top};

/// What a log-probability of negative infinity is written as: JSON has no infinities.
pub const IMPOSSIBLE: f32 = -9999.0;

/// `ln Σ exp(logit)`: what is to be subtracted from a logit to make it a log-probability. `scratch`
/// is overwritten. NaN when no logit is a number.
///
/// `m + ln Σ exp(logit - m)` with `m` the highest logit, so that nothing overflows; the terms are
/// f32 within 2 units in the last place, their sum is f64.
pub fn log_sum_exp(logits: &[f32], scratch: &mut Vec<f32>) -> f32 {
    let highest = max(logits);
    if highest.is_infinite() {
        let numbers = logits.iter().any(|logit| !logit.is_nan());
        return if numbers { highest } else { f32::NAN };
    }
    weights(logits, highest, 1.0, scratch);
    (f64::from(highest) + sum(scratch).ln()) as f32
}

/// The sum of a row's [`weights`] at a scale: what a share of the probability is a share of. `scratch`
/// is overwritten. NaN weighs nothing.
pub fn weight_sum(logits: &[f32], scale: f32, scratch: &mut Vec<f32>) -> f64 {
    weights(logits, max(logits), scale, scratch);
    sum(scratch)
}

/// A token's log-probability, from its logit and the [`log_sum_exp`] of its row: finite, at most 0.
pub fn log_probability(logit: f32, log_sum_exp: f32) -> f32 {
    let difference = (f64::from(logit) - f64::from(log_sum_exp)) as f32;
    // Also where a logit is infinite, or not a number.
    if difference >= IMPOSSIBLE { difference.min(0.0) } else { IMPOSSIBLE }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lse(logits: &[f32]) -> f32 {
        log_sum_exp(logits, &mut Vec::new())
    }

    #[test]
    fn log_sum_exp_is_exact_to_f32() {
        let mut state = 1_u32;
        for size in [1, 2, 17, 1000, 262_144] {
            for spread in [0.0, 1.0, 10.0, 60.0] {
                let logits = (0..size)
                    .map(|_| {
                        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        (state >> 8) as f32 / (1 << 24) as f32 * spread - 3.0
                    })
                    .collect::<Vec<_>>();
                let exact = logits.iter().map(|logit| f64::from(*logit).exp()).sum::<f64>().ln();
                assert!((f64::from(lse(&logits)) - exact).abs() < 4e-6, "{size} {spread}");
            }
        }
    }

    #[test]
    fn extremes_stay_numbers() {
        assert_eq!(lse(&[1e30, 1e30]), 1e30);
        assert_eq!(lse(&[f32::NEG_INFINITY, 2.0]), 2.0);
        assert_eq!(lse(&[f32::NAN, 2.0]), 2.0);
        assert_eq!(lse(&[f32::NEG_INFINITY; 3]), f32::NEG_INFINITY);
        assert_eq!(lse(&[f32::INFINITY, 1.0]), f32::INFINITY);
        assert!(lse(&[f32::NAN; 3]).is_nan());
        assert!(lse(&[]).is_nan());
    }

    #[test]
    fn log_probabilities_are_finite_and_not_above_0() {
        assert_eq!(log_probability(2.0, 2.5), -0.5);
        assert_eq!(log_probability(2.0, 1.999_999), 0.0);
        for logit in [f32::NEG_INFINITY, f32::NAN, -1e30] {
            assert_eq!(log_probability(logit, 1.0), IMPOSSIBLE);
        }
        assert_eq!(log_probability(f32::INFINITY, f32::INFINITY), IMPOSSIBLE);
    }
}
