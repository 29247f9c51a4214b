//! What benchmarks share: their options, and what is made of several rounds.

use clap::Args;

use crate::models::Weights;

/// How much is measured.
#[derive(Args, Debug, Clone)]
pub struct Rounds {
    /// How often each thing is measured, in turn; tables have the medians
    #[arg(long, default_value_t = 7)]
    pub rounds: usize,

    /// Of which weights
    #[arg(long, value_delimiter = ',', default_value = "q4_1,q4_0,q8_0")]
    pub weights: Vec<Weights>,

    /// What cargo passes to every benchmark
    #[arg(long, hide = true)]
    pub bench: bool,
}

/// The median of some values.
///
/// # Panics
/// When there are none.
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// The value that a share of the values are below, 0 to 1; between two of them in proportion.
///
/// # Panics
/// When there are none.
pub fn quantile(values: &[f64], share: f64) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let at = (values.len() - 1) as f64 * share;
    let (below, above) = (values[at.floor() as usize], values[at.ceil() as usize]);
    below + (above - below) * at.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_values() {
        let values = [3.0, 1.0, 2.0, 4.0];
        assert_eq!(median(&values), 2.5);
        assert_eq!([0.0, 0.25, 1.0].map(|share| quantile(&values, share)), [1.0, 1.75, 4.0]);
        assert_eq!(median(&[7.0]), 7.0);
    }
}
