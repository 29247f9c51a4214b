//! What one decode computes.

use crate::{SequenceId, Token};

/// Tokens of any number of sequences, in the order they are given. Entry i is the i-th pushed.
#[derive(Debug, Default, Clone)]
pub struct Batch {
    pub(crate) tokens: Vec<Token>,
    pub(crate) positions: Vec<i32>,
    pub(crate) sequences: Vec<SequenceId>,
    pub(crate) outputs: Vec<i8>,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes out all entries and keeps the memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.sequences.clear();
        self.outputs.clear();
    }

    /// Adds one token of a sequence at a position; `output` asks for its logits.
    pub fn push(&mut self, token: Token, position: u32, sequence: SequenceId, output: bool) {
        self.tokens.push(token);
        self.positions.push(i32::try_from(position).unwrap_or(i32::MAX));
        self.sequences.push(sequence);
        self.outputs.push(output.into());
    }

    /// Entries so far.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there is nothing to compute.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }
}
