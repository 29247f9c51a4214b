//! Which choices are generated together, when they are more than a context has rows.

use std::ops::Range;

/// Choices that are generated at the same time: all of several prompts', or some of one's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wave {
    /// Places among the request's prompts.
    pub prompts: Range<usize>,
    /// Which of each prompt's candidates.
    pub candidates: Range<usize>,
}

impl Wave {
    /// The waves of so many prompts with so many candidates each, on at most `max_rows` rows.
    pub fn all(prompts: usize, candidates: usize, max_rows: usize) -> Vec<Self> {
        let max_rows = max_rows.max(1);
        let whole = max_rows / candidates;
        if whole > 0 {
            return (0..prompts)
                .step_by(whole)
                .map(|first| Self {
                    prompts: first..prompts.min(first + whole),
                    candidates: 0..candidates,
                })
                .collect();
        }
        let parts = |prompt| {
            (0..candidates).step_by(max_rows).map(move |first| Self {
                prompts: prompt..prompt + 1,
                candidates: first..candidates.min(first + max_rows),
            })
        };
        (0..prompts).flat_map(parts).collect()
    }

    /// Whether its prompt is that of the wave before it.
    pub fn goes_on(&self) -> bool {
        self.candidates.start > 0
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.prompts.len() * self.candidates.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wave(prompts: Range<usize>, candidates: Range<usize>) -> Wave {
        Wave { prompts, candidates }
    }

    #[test]
    fn prompts_share_a_wave_as_long_as_there_are_rows() {
        assert_eq!(Wave::all(1, 1, 16), [wave(0..1, 0..1)]);
        assert_eq!(Wave::all(5, 2, 4), [wave(0..2, 0..2), wave(2..4, 0..2), wave(4..5, 0..2)]);
        assert_eq!(Wave::all(2, 3, 4), [wave(0..1, 0..3), wave(1..2, 0..3)]);
    }

    #[test]
    fn many_candidates_of_one_prompt_take_several_waves() {
        let waves = Wave::all(2, 5, 4);
        assert_eq!(waves, [wave(0..1, 0..4), wave(0..1, 4..5), wave(1..2, 0..4), wave(1..2, 4..5)]);
        let goes_on = waves.iter().map(Wave::goes_on).collect::<Vec<_>>();
        assert_eq!(goes_on, [false, true, false, true]);
    }

    #[test]
    fn every_choice_is_in_one_wave() {
        for (prompts, candidates, max_rows) in [(1, 128, 16), (32, 2, 16), (2048, 1, 3), (7, 20, 1)]
        {
            let waves = Wave::all(prompts, candidates, max_rows);
            assert!(waves.iter().all(|wave| (1..=max_rows).contains(&wave.rows())));
            assert_eq!(waves.iter().map(Wave::rows).sum::<usize>(), prompts * candidates);
        }
    }
}
