//! What generation asks of a backend.

use std::cell::{Cell, OnceCell};
use std::fmt;

use spinfer_logits::Candidate;

use super::{BackendError, BackendErrorKind};
use crate::tokenizer::TokenId;

/// A batch of token sequences (rows) in a backend, which remembers them from step to step.
pub trait ExecutionContext {
    /// Asks for room, before anything else: the length that each row will have in the end. Returns
    /// when there is room.
    fn reserve(&mut self, lengths: &[usize]) -> Result<(), BackendError>;

    /// Appends tokens, and replaces what of `outputs` is wanted.
    fn compute(&mut self, step: &Step<'_>, outputs: &mut Outputs) -> Result<(), BackendError>;
}

/// One step of a batch.
#[derive(Debug, Clone, Copy)]
pub struct Step<'a> {
    /// The new tokens of each row. At least one row has some.
    pub tokens: &'a [&'a [TokenId]],
    /// The row of the batch as it was that each row continues. `None`: the batch stays as it is, or
    /// is new.
    pub parents: Option<&'a [usize]>,
    /// How many of its parent's tokens each row keeps. `None`: all of them.
    pub starts: Option<&'a [usize]>,
    /// What is to come of it.
    pub wanted: Wanted<'a>,
    /// In the first step: with whom the rows may be shared. `None`: with nobody.
    pub cache_salt: Option<&'a [u8]>,
}

impl Step<'_> {
    /// S: the most new tokens of a row.
    pub fn columns(&self) -> usize {
        self.tokens.iter().map(|tokens| tokens.len()).max().unwrap_or(0)
    }

    /// K: the positions that [`Outputs::reductions`] has of each row.
    pub fn positions(&self) -> usize {
        match self.wanted {
            Wanted::Logits => 0,
            Wanted::Last { .. } => 1,
            Wanted::Every { .. } => self.columns(),
        }
    }
}

/// What a step is to bring.
#[derive(Debug, Clone, Copy)]
pub enum Wanted<'a> {
    /// The logits after the last new token of each row.
    Logits,
    /// Reductions after the last new token of each row.
    Last {
        /// How many of the most likely tokens.
        top_k: usize,
        /// Whether their log-probabilities are wanted too, for which the whole row is summed.
        sums: bool,
        /// What is drawn from is drawn from the logits times this: the sum of the weights is wanted
        /// too, and the logits of all tokens within reach.
        scale: Option<f32>,
    },
    /// Reductions after every new token.
    Every {
        /// How many of the most likely tokens.
        top_k: usize,
        /// For each row, a token after each of its new tokens, whose logit is wanted. What a row has
        /// none for can have any.
        followed_by: &'a [&'a [TokenId]],
    },
}

/// What a step has brought.
#[derive(Debug, Default)]
pub struct Outputs {
    /// For [`Wanted::Logits`], and within reach where there is a scale.
    pub logits: Logits,
    /// For the others.
    pub reductions: Reductions,
    /// With a salt: how many of the step's tokens were not computed, since an earlier request had.
    pub cached_tokens: usize,
}

/// One row of logits for each row of a batch.
#[derive(Default)]
pub struct Logits {
    storage: OnceCell<Storage>,
    source: Cell<Option<Source>>,
    /// The values of one row.
    pub vocab_size: usize,
}

/// Where the bytes of logits are to be had.
pub type Source = Box<dyn FnOnce() -> Result<Vec<u8>, BackendError>>;

#[derive(Debug)]
enum Storage {
    /// As they came, and where a float may be.
    Bytes(Vec<u8>),
    Floats(Vec<f32>),
}

impl fmt::Debug for Logits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Logits").field("storage", &self.storage).finish_non_exhaustive()
    }
}

impl Logits {
    /// Logits from their little-endian bytes, which are not copied where they lie as floats must.
    pub fn from_bytes(bytes: Vec<u8>, vocab_size: usize) -> Self {
        let in_place =
            cfg!(target_endian = "little") && bytemuck::try_cast_slice::<u8, f32>(&bytes).is_ok();
        let storage = if in_place {
            Storage::Bytes(bytes)
        } else {
            let (elements, _) = bytes.as_chunks::<4>();
            Storage::Floats(elements.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
        };
        Self { storage: storage.into(), source: Cell::default(), vocab_size }
    }

    /// Logits that are fetched when [`Self::fetch`] is called, and not before.
    pub fn within_reach(source: Source, vocab_size: usize) -> Self {
        Self { storage: OnceCell::new(), source: Some(source).into(), vocab_size }
    }

    /// Makes sure that the values are here.
    pub fn fetch(&self) -> Result<(), BackendError> {
        let Some(source) = self.source.take() else { return Ok(()) };
        let bytes = source()?;
        if self.vocab_size == 0 || !bytes.len().is_multiple_of(self.vocab_size * 4) {
            let message =
                format!("{} bytes are no rows of {} logits", bytes.len(), self.vocab_size);
            return Err(BackendError { kind: BackendErrorKind::Failed, message });
        }
        let fetched = Self::from_bytes(bytes, self.vocab_size);
        if let Some(storage) = fetched.storage.into_inner() {
            let _ = self.storage.set(storage);
        }
        Ok(())
    }

    /// All values that are here, row after row.
    pub fn values(&self) -> &[f32] {
        match self.storage.get() {
            Some(Storage::Bytes(bytes)) => bytemuck::cast_slice(bytes),
            Some(Storage::Floats(floats)) => floats,
            None => &[],
        }
    }

    /// The logits of one row.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.values()[row * self.vocab_size..][..self.vocab_size]
    }
}

impl From<(Vec<f32>, usize)> for Logits {
    fn from((values, vocab_size): (Vec<f32>, usize)) -> Self {
        let storage = Storage::Floats(values).into();
        Self { storage, source: Cell::default(), vocab_size }
    }
}

/// Reductions of the logits `[B, K, V]`; what stands in padding means nothing.
#[derive(Debug, Default)]
pub struct Reductions {
    /// K.
    pub positions: usize,
    /// k.
    pub top_k: usize,
    /// `[B, K, k]`, the most likely first; -1 beyond the last.
    pub top_ids: Vec<i32>,
    /// `[B, K, k]`.
    pub top_logits: Vec<f32>,
    /// `[B, K]`; empty unless something was to be gathered.
    pub gathered: Vec<f32>,
    /// `[B, K]`; empty unless it was wanted.
    pub log_sum_exp: Vec<f32>,
    /// `[B, K]`: of the weights at a scale; empty unless there was one.
    pub weight_sums: Vec<f64>,
}

impl Reductions {
    /// The most likely tokens at a position.
    pub fn top(&self, row: usize, position: usize) -> impl Iterator<Item = Candidate> {
        let start = (row * self.positions + position) * self.top_k;
        let range = start..start + self.top_k;
        let ids = self.top_ids[range.clone()].iter().zip(&self.top_logits[range]);
        ids.map_while(|(id, logit)| Some((TokenId::try_from(*id).ok()?, *logit)))
    }

    /// The gathered token's logit at a position.
    pub fn gathered(&self, row: usize, position: usize) -> f32 {
        self.gathered[row * self.positions + position]
    }

    /// [`spinfer_logits::weight_sum`] of a position, at the step's scale.
    pub fn weight_sum(&self, row: usize, position: usize) -> f64 {
        self.weight_sums[row * self.positions + position]
    }

    /// [`spinfer_logits::log_sum_exp`] of a position.
    pub fn log_sum_exp(&self, row: usize, position: usize) -> f32 {
        self.log_sum_exp[row * self.positions + position]
    }
}

impl Outputs {
    /// Whether this is what a step had to bring.
    pub fn check(&self, step: &Step<'_>, vocab_size: usize) -> Result<(), BackendError> {
        let rows = step.tokens.len();
        let (name, found, expected) = match step.wanted {
            Wanted::Logits | Wanted::Last { scale: Some(_), .. }
                if self.logits.vocab_size != vocab_size =>
            {
                ("logits in a row", self.logits.vocab_size, vocab_size)
            }
            Wanted::Logits => ("logits", self.logits.values().len(), rows * vocab_size),
            Wanted::Last { top_k, .. } | Wanted::Every { top_k, .. } => {
                let reductions = &self.reductions;
                let cells = rows * step.positions();
                let gathers = matches!(step.wanted, Wanted::Every { .. });
                let sums = !matches!(step.wanted, Wanted::Last { sums: false, .. });
                let weighs = matches!(step.wanted, Wanted::Last { scale: Some(_), .. });
                let sizes = [
                    ("positions", reductions.positions, step.positions()),
                    ("alternatives", reductions.top_k, top_k),
                    ("top ids", reductions.top_ids.len(), cells * top_k),
                    ("top logits", reductions.top_logits.len(), cells * top_k),
                    ("gathered logits", reductions.gathered.len(), if gathers { cells } else { 0 }),
                    ("sums", reductions.log_sum_exp.len(), if sums { cells } else { 0 }),
                    ("weights", reductions.weight_sums.len(), if weighs { cells } else { 0 }),
                ];
                let wrong = sizes.into_iter().find(|(_, found, expected)| found != expected);
                wrong.unwrap_or(("", 0, 0))
            }
        };
        if found == expected {
            return Ok(());
        }
        Err(BackendError {
            kind: BackendErrorKind::Failed,
            message: format!("expected {expected} {name} for {rows} rows, found {found}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logits_are_the_same_as_bytes_and_as_floats() {
        let values = [1.5_f32, -2.0, 3.25, 0.0];
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
        for logits in [Logits::from_bytes(bytes, 2), Logits::from((values.to_vec(), 2))] {
            assert_eq!(logits.values(), values);
            assert_eq!(logits.row(1), [3.25, 0.0]);
        }
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
        let logits = Logits::within_reach(Box::new(|| Ok(bytes)), 2);
        assert_eq!(logits.values(), [] as [f32; 0]);
        logits.fetch().unwrap();
        logits.fetch().unwrap();
        assert_eq!(logits.values(), values);
    }
}
