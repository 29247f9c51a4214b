//! A llama context with the knowledge of what each of its sequences holds, so that a prompt can begin
//! with what an earlier request has computed: the prefix cache.
//!
//! A finished sequence keeps its tokens until somebody needs the sequence. What may be shared with whom
//! is decided by a [`Scope`]: only requests of the same scope see each other's sequences.

use std::sync::Arc;

use spinfer_llama::{Context, SequenceId, Token};

/// Who may share: a component, and the salt that it gives for a caller.
pub type Scope = Arc<[u8]>;

/// Shorter beginnings are computed again: finding and cutting them costs as much.
const SHORTEST: usize = 16;

/// What a sequence holds.
#[derive(Debug, Clone, Default)]
struct Content {
    tokens: Vec<Token>,
    /// None: nobody else may have it.
    scope: Option<Scope>,
}

/// What a prompt has in common with a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Match {
    /// The sequence.
    pub sequence: SequenceId,
    /// How many of the first tokens are the same.
    pub length: usize,
    /// How many tokens the sequence holds.
    pub held: usize,
}

/// The sequences of one llama context.
pub struct Memory {
    llama: Context,
    contents: Vec<Content>,
}

impl Memory {
    /// The empty sequences of a context.
    pub fn new(llama: Context) -> Self {
        let contents = vec![Content::default(); llama.sequences() as usize];
        Self { llama, contents }
    }

    /// The context.
    pub fn llama(&self) -> &Context {
        &self.llama
    }

    /// The context, to decode with.
    pub fn llama_mut(&mut self) -> &mut Context {
        &mut self.llama
    }

    /// The context; what its sequences hold is forgotten.
    pub fn into_llama(self) -> Context {
        self.llama
    }

    /// Tokens over all sequences.
    pub fn cells_used(&self) -> usize {
        self.contents.iter().map(|content| content.tokens.len()).sum()
    }

    /// Tokens that a sequence holds.
    pub fn length(&self, sequence: SequenceId) -> usize {
        self.contents[sequence as usize].tokens.len()
    }

    /// A token is about to be computed at the end of a sequence.
    pub fn append(&mut self, sequence: SequenceId, token: Token) {
        self.contents[sequence as usize].tokens.push(token);
    }

    /// From now on, what a sequence holds may be shared with that scope.
    pub fn share(&mut self, sequence: SequenceId, scope: &Scope) {
        self.contents[sequence as usize].scope = Some(scope.clone());
    }

    /// Empties a sequence, which is nobody's then.
    pub fn remove(&mut self, sequence: SequenceId) {
        let content = &mut self.contents[sequence as usize];
        if !content.tokens.is_empty() {
            content.tokens.clear();
            self.llama.remove(sequence);
        }
        content.scope = None;
    }

    /// Makes `to` an equal of `from`.
    pub fn copy(&mut self, from: SequenceId, to: SequenceId) {
        self.llama.copy(from, to);
        self.contents[to as usize] = self.contents[from as usize].clone();
    }

    /// Moves what `from` holds to `to`, whose own content is gone.
    pub fn relocate(&mut self, from: SequenceId, to: SequenceId) {
        self.remove(to);
        if self.length(from) > 0 {
            self.copy(from, to);
            self.remove(from);
        }
    }

    /// Cuts a sequence; false where the model's memory can't be cut there.
    #[must_use]
    pub fn truncate(&mut self, sequence: SequenceId, length: usize) -> bool {
        let tokens = &mut self.contents[sequence as usize].tokens;
        if length >= tokens.len() {
            return true;
        }
        let cut = self.llama.truncate(sequence, length as u32);
        if cut {
            tokens.truncate(length);
        }
        cut
    }

    /// The sequence with the most of a prompt's first `most` tokens, among those that `may` be taken.
    pub fn longest_match(
        &self,
        scope: &Scope,
        prompt: &[Token],
        most: usize,
        may: impl Fn(SequenceId) -> bool,
    ) -> Option<Match> {
        let sequences = (0..).zip(&self.contents);
        let matches = sequences
            .filter(|(sequence, content)| content.scope.as_ref() == Some(scope) && may(*sequence))
            .map(|(sequence, content)| Match {
                sequence,
                length: common(&content.tokens, &prompt[..most]),
                held: content.tokens.len(),
            });
        // Of equal ones, that which loses the least when it is cut.
        matches
            .filter(|found| found.length >= SHORTEST)
            .max_by_key(|found| (found.length, std::cmp::Reverse(found.held)))
    }
}

/// How many of the first tokens are the same.
fn common(a: &[Token], b: &[Token]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beginnings_are_compared() {
        assert_eq!(common(&[1, 2, 3], &[1, 2, 4, 5]), 2);
        assert_eq!(common(&[1, 2], &[1, 2, 3]), 2);
        assert_eq!(common(&[], &[1]), 0);
    }
}
