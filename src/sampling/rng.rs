//! The random numbers of sampling.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// A generator whose numbers are decided by a seed and a choice's index alone.
#[derive(Debug, Clone)]
pub struct Rng(ChaCha8Rng);

impl Rng {
    /// The generator of choice `stream` under `seed`. Different streams are independent.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(stream);
        Self(rng)
    }

    /// A number in `0..1`, with 53 random bits.
    pub fn uniform(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers to seeded requests must not change from one version to the next.
    #[test]
    fn the_numbers_are_fixed_for_good() {
        let mut rng = Rng::new(42, 3);
        let found = (0..3).map(|_| (rng.uniform() * 1e6) as u32).collect::<Vec<_>>();
        assert_eq!(found, [361_691, 592_416, 730_100]);
    }

    #[test]
    fn numbers_are_spread_over_the_unit_interval() {
        let mut rng = Rng::new(1, 0);
        let numbers = (0..10_000).map(|_| rng.uniform()).collect::<Vec<_>>();
        assert!(numbers.iter().all(|number| (0.0..1.0).contains(number)));
        let mean = numbers.iter().sum::<f64>() / 10_000.0;
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
    }
}
