//! Passes over a whole vocabulary, in forms that compilers vectorise: lanes side by side, no
//! branches, and sums of f64 in a fixed order.

/// Lanes that are worked on side by side.
const LANES: usize = 16;

/// The highest value; NaN doesn't count. Negative infinity when there is nothing else.
pub fn max(values: &[f32]) -> f32 {
    let higher = |a: f32, b: f32| if b > a { b } else { a };
    let (blocks, rest) = values.as_chunks::<LANES>();
    let mut highest = [f32::NEG_INFINITY; LANES];
    for block in blocks {
        for (lane, value) in highest.iter_mut().zip(block) {
            *lane = higher(*lane, *value);
        }
    }
    highest.iter().chain(rest).copied().fold(f32::NEG_INFINITY, higher)
}

/// Whether any value is above `limit`.
pub fn any_above(values: &[f32], limit: f32) -> bool {
    values.iter().fold(false, |any, value| any | (*value > limit))
}

/// The sum.
pub fn sum(values: &[f32]) -> f64 {
    let (blocks, rest) = values.as_chunks::<LANES>();
    let mut sums = [0.0_f64; LANES];
    for block in blocks {
        for (lane, value) in sums.iter_mut().zip(block) {
            *lane += f64::from(*value);
        }
    }
    sums.iter().sum::<f64>() + rest.iter().map(|value| f64::from(*value)).sum::<f64>()
}

/// Fills `weights` with the softmax's numerators, `exp((logit - max) * scale)`. NaN weighs nothing.
pub fn weights(logits: &[f32], max: f32, scale: f32, weights: &mut Vec<f32>) {
    weights.clear();
    weights.extend(logits.iter().map(|logit| exp((logit - max) * scale)));
}

/// `e^x` for `x <= 0`, within 2 units in the last place; 0 below -87 (where f32 has no normal
/// numbers left) and for NaN.
///
/// `e^x = 2^n * e^r` with `n` the integer nearest to `x / ln 2`, so that `|r| <= ln 2 / 2`; there
/// the power series up to the seventh power is exact to f32's precision.
fn exp(x: f32) -> f32 {
    /// ln 2 in two parts, the first with so few bits that `n` times it is exact.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = (std::f64::consts::LN_2 - LN_2_HIGH as f64) as f32;
    /// At this size f32 holds integers only: adding it rounds, and leaves the integer in the low
    /// bits.
    const INTEGERS: f32 = 1.5 * (1 << 23) as f32;
    const LOWEST: f32 = -87.0;

    let kept = if x > LOWEST { x } else { LOWEST };
    let shifted = kept * std::f32::consts::LOG2_E + INTEGERS;
    let n = shifted - INTEGERS;
    let r = (kept - n * LN_2_HIGH) - n * LN_2_LOW;
    let mut series = 1.0 / 5040.0;
    for factor in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        series = series * r + factor;
    }
    // 2^n is made of its exponent's bits; the shift drops all bits of `shifted` above them.
    let power = f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    if x >= LOWEST { series * power } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_as_good_as_the_standard_one() {
        let mut x = 0.0_f32;
        while x > -87.0 {
            let exact = f64::from(x).exp();
            let error = (f64::from(exp(x)) - exact).abs() / exact;
            assert!(error < 3e-7, "exp({x}): {error}");
            x -= 0.001_37;
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-0.0), 1.0);
        for x in [-88.0, -1e30, f32::NEG_INFINITY, f32::NAN] {
            assert_eq!(exp(x), 0.0, "{x}");
        }
    }

    #[test]
    fn the_sum_is_that_of_all_weights() {
        let logits = (0..1003).map(|i| i as f32 / 100.0).collect::<Vec<_>>();
        let mut buffer = Vec::new();
        weights(&logits, 10.02, 1.0, &mut buffer);
        let sum = sum(&buffer);
        let exact = logits.iter().map(|logit| (f64::from(*logit) - 10.02).exp()).sum::<f64>();
        assert!((sum - exact).abs() / exact < 1e-6);
        assert_eq!(buffer.len(), 1003);
    }

    #[test]
    fn max_and_any_above_see_every_lane() {
        for length in [1, 15, 16, 17, 40] {
            for at in 0..length {
                let mut values = vec![-1.0; length];
                values[at] = 3.0;
                values[(at + 1) % length] = if length > 1 { f32::NAN } else { 3.0 };
                assert_eq!(max(&values), 3.0);
                assert!(any_above(&values, 2.0));
                assert!(!any_above(&values, 3.0));
            }
        }
        assert_eq!(max(&[f32::NAN; 20]), f32::NEG_INFINITY);
        assert_eq!(max(&[]), f32::NEG_INFINITY);
    }
}
