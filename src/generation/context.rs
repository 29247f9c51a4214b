//! What generation asks of a backend.

use super::{BackendError, BackendErrorKind};
use crate::tokenizer::TokenId;

/// A batch of token sequences (rows) in a backend, which remembers them from step to step.
pub trait ExecutionContext {
    /// Asks for room, before anything else: the length that each row will have in the end. Returns
    /// when there is room.
    fn reserve(&mut self, lengths: &[usize]) -> Result<(), BackendError>;

    /// Appends tokens, and replaces `logits` with those after the last new token of each row.
    fn compute(&mut self, step: &Step<'_>, logits: &mut Logits) -> Result<(), BackendError>;
}

/// One step of a batch.
#[derive(Debug, Clone, Copy)]
pub struct Step<'a> {
    /// The new tokens of each row; no row is without.
    pub tokens: &'a [&'a [TokenId]],
    /// The row of the batch as it was that each row continues. `None`: the batch stays as it is, or
    /// is new.
    pub parents: Option<&'a [usize]>,
}

/// One row of logits for each row of a batch.
#[derive(Debug, Default)]
pub struct Logits {
    /// All values, row after row.
    pub values: Vec<f32>,
    /// The values of one row.
    pub vocab_size: usize,
}

impl Logits {
    /// The logits of one row.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.vocab_size..][..self.vocab_size]
    }

    /// Whether this is what a step had to bring.
    pub fn check(&self, rows: usize, vocab_size: usize) -> Result<(), BackendError> {
        if self.vocab_size == vocab_size && self.values.len() == rows * vocab_size {
            return Ok(());
        }
        Err(BackendError {
            kind: BackendErrorKind::Failed,
            message: format!(
                "expected {rows} rows of {vocab_size} logits, found {} values in rows of {}",
                self.values.len(),
                self.vocab_size
            ),
        })
    }
}
