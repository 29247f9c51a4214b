//! Bias and penalties.

use std::collections::BTreeMap;

use super::Adjustments;
use crate::tokenizer::TokenId;

/// The tokens of one choice so far, and how often each was generated: 0 for those that are in the
/// prompt only.
#[derive(Debug, Clone, Default)]
pub struct History(BTreeMap<TokenId, u32>);

impl History {
    /// Nothing but a prompt.
    pub fn new(prompt: &[TokenId]) -> Self {
        Self(prompt.iter().map(|token| (*token, 0)).collect())
    }

    /// A token was generated.
    pub fn push(&mut self, token: TokenId) {
        *self.0.entry(token).or_default() += 1;
    }
}

impl Adjustments {
    /// Changes the logits. Tokens outside the row are left alone.
    ///
    /// The order is vLLM's: bias, then the penalty for repetition (Keskar et al., 2019, section 4.1),
    /// then those for frequency and presence
    /// (`logit - count * frequency_penalty - (count > 0) * presence_penalty`, OpenAI's formula).
    pub fn apply(&self, history: &History, logits: &mut [f32]) {
        for (token, bias) in &self.bias {
            if let Some(logit) = logits.get_mut(*token as usize) {
                *logit += bias;
            }
        }
        if !self.need_history() {
            return;
        }
        for (token, count) in &history.0 {
            let Some(logit) = logits.get_mut(*token as usize) else {
                continue;
            };
            if *logit > 0.0 {
                *logit /= self.repetition_penalty;
            } else {
                *logit *= self.repetition_penalty;
            }
            if *count > 0 {
                *logit -= *count as f32 * self.frequency_penalty + self.presence_penalty;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adjusted(adjustments: &Adjustments, logits: &[f32]) -> Vec<f32> {
        let mut history = History::new(&[0, 1]);
        for token in [1, 2, 2] {
            history.push(token);
        }
        let mut logits = logits.to_vec();
        adjustments.apply(&history, &mut logits);
        logits
    }

    #[test]
    fn frequency_counts_and_presence_does_not() {
        let penalties = Adjustments { frequency_penalty: 0.5, ..Default::default() };
        assert_eq!(adjusted(&penalties, &[1.0; 4]), [1.0, 0.5, 0.0, 1.0]);
        let penalties = Adjustments { presence_penalty: 0.5, ..Default::default() };
        assert_eq!(adjusted(&penalties, &[1.0; 4]), [1.0, 0.5, 0.5, 1.0]);
        let penalties = Adjustments { presence_penalty: -1.0, ..Default::default() };
        assert_eq!(adjusted(&penalties, &[1.0; 4]), [1.0, 2.0, 2.0, 1.0]);
    }

    #[test]
    fn repetition_counts_the_prompt_and_always_lowers() {
        let penalties = Adjustments { repetition_penalty: 2.0, ..Default::default() };
        assert_eq!(adjusted(&penalties, &[1.0, -1.0, 4.0, 3.0]), [0.5, -2.0, 2.0, 3.0]);
    }

    #[test]
    fn bias_is_added_where_there_is_a_token() {
        let bias = Adjustments { bias: vec![(3, -100.0), (9, 1.0)], ..Default::default() };
        assert_eq!(adjusted(&bias, &[1.0; 4]), [1.0, 1.0, 1.0, -99.0]);
        assert!(!bias.is_none() && !bias.need_history());
    }
}
