//! `n` and `best_of`.

use spinfer_protocol::ApiError;

use super::Fields;

/// The most choices of one prompt.
const MAX_N: i64 = 128;
/// The most candidates of one prompt.
const MAX_BEST_OF: i64 = 20;

/// How many completions of each prompt are generated, and how many are in the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choices {
    /// In the answer, at least 1.
    pub n: usize,
    /// Generated, at least `n`.
    pub candidates: usize,
}

impl Choices {
    /// Whether the best candidates are to be found.
    pub fn are_ranked(&self) -> bool {
        self.candidates > self.n
    }

    pub(super) fn read(fields: &Fields) -> Result<Self, ApiError> {
        let n = fields.integer("n", 1, MAX_N)?.unwrap_or(1);
        let best_of = fields.integer("best_of", 1, MAX_BEST_OF)?;
        let candidates = best_of.unwrap_or(n);
        if candidates < n {
            let message =
                format!("`best_of` must be at least `n`, which is {n}, not {candidates}.");
            return Err(ApiError::invalid("best_of", message));
        }
        Ok(Self { n: n as usize, candidates: candidates as usize })
    }
}
