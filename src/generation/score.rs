//! Log-probabilities of tokens, and which alternatives are listed beside them.

use spinfer_logits::{Candidate, log_probability};

use crate::sampling::NanLogits;
use crate::tokenizer::TokenId;

/// A token's log-probability under the model's raw logits.
#[derive(Debug, Clone, PartialEq)]
pub struct Score {
    /// Characters from the start of the prompt to the start of the token.
    pub offset: usize,
    /// The token's own. `None` for a prompt's first token, which nothing precedes.
    pub logprob: Option<f32>,
    /// Tokens at this place with their log-probabilities, the token itself among them; none beside
    /// a prompt's first token.
    pub top: Vec<(TokenId, f32)>,
}

/// What of one position's logits makes scores.
#[derive(Debug, Clone, Copy)]
pub struct Position<'a> {
    /// The most likely tokens, at least as many as alternatives are asked for.
    pub top: &'a [Candidate],
    /// [`spinfer_logits::log_sum_exp`].
    pub log_sum_exp: f32,
}

impl Position<'_> {
    /// A token that was generated here: beside it stand `alternatives` tokens, of which it takes the
    /// last place if it isn't among the most likely; with one alternative, it stands beside that.
    pub fn generated(
        &self,
        token: TokenId,
        logit: f32,
        alternatives: usize,
    ) -> Result<Score, NanLogits> {
        let places = match alternatives {
            0 | 1 => alternatives,
            _ if self.top.iter().take(alternatives).any(|(id, _)| *id == token) => alternatives,
            _ => alternatives - 1,
        };
        self.score(token, logit, places)
    }

    /// A token of the prompt: it stands beside the most likely ones if it isn't among them.
    pub fn in_prompt(
        &self,
        token: TokenId,
        logit: f32,
        alternatives: usize,
    ) -> Result<Score, NanLogits> {
        self.score(token, logit, alternatives)
    }

    /// The first `places` of the most likely tokens, and the token.
    fn score(&self, token: TokenId, logit: f32, places: usize) -> Result<Score, NanLogits> {
        if self.log_sum_exp.is_nan() {
            return Err(NanLogits);
        }
        let logprob = log_probability(logit, self.log_sum_exp);
        let listed = self.top.iter().take(places);
        let mut top = listed
            .map(|(id, logit)| (*id, log_probability(*logit, self.log_sum_exp)))
            .collect::<Vec<_>>();
        if !top.iter().any(|(id, _)| *id == token) {
            top.push((token, logprob));
        }
        Ok(Score { offset: 0, logprob: Some(logprob), top })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOP: [Candidate; 3] = [(7, 3.0), (4, 2.0), (5, 1.0)];
    const POSITION: Position<'_> = Position { top: &TOP, log_sum_exp: 4.0 };

    fn generated(token: TokenId, logit: f32, alternatives: usize) -> Vec<(TokenId, f32)> {
        POSITION.generated(token, logit, alternatives).unwrap().top
    }

    #[test]
    fn a_generated_token_is_always_among_its_alternatives() {
        assert_eq!(generated(9, 0.5, 0), [(9, -3.5)]);
        assert_eq!(generated(7, 3.0, 1), [(7, -1.0)]);
        assert_eq!(generated(9, 0.5, 1), [(7, -1.0), (9, -3.5)]);
        assert_eq!(generated(4, 2.0, 2), [(7, -1.0), (4, -2.0)]);
        assert_eq!(generated(9, 0.5, 2), [(7, -1.0), (9, -3.5)]);
        assert_eq!(generated(9, 0.5, 3), [(7, -1.0), (4, -2.0), (9, -3.5)]);
    }

    #[test]
    fn a_token_of_the_prompt_comes_on_top_of_the_others() {
        let in_prompt = |token, logit, n| POSITION.in_prompt(token, logit, n).unwrap();
        assert_eq!(in_prompt(9, 0.5, 0).top, [(9, -3.5)]);
        assert_eq!(in_prompt(9, 0.5, 2).top, [(7, -1.0), (4, -2.0), (9, -3.5)]);
        assert_eq!(in_prompt(4, 2.0, 2).top, [(7, -1.0), (4, -2.0)]);
        assert_eq!(in_prompt(9, 0.5, 2).logprob, Some(-3.5));
    }

    #[test]
    fn a_row_of_nan_has_no_scores() {
        let position = Position { top: &[], log_sum_exp: f32::NAN };
        assert_eq!(position.generated(1, f32::NAN, 1), Err(NanLogits));
    }
}
