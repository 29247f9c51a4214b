//! The causal-LM convention: from named tensors to what a backend is to do.
//!
//! Everything that can be wrong with a call is found here, before any backend sees it, so a backend
//! gets token ids that exist, rows that exist and shapes that agree. Pure: no backend, no I/O.

use std::collections::BTreeMap;

use spinfer_protocol::tensor as names;

use super::{NnError, Tensor};

/// The most bytes of outputs that one call may ask for.
const MOST_OUTPUT_BYTES: u64 = 512 << 20;

/// The most bytes of a cache salt.
const LONGEST_SALT: u32 = 256;

/// What of a model and its context a call is checked against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Tokens in the vocabulary.
    pub vocab_size: u32,
    /// The longest row in tokens.
    pub context: u32,
    /// The most rows of one execution context.
    pub max_rows: u32,
    /// Whether rows can be cut back.
    pub rewinds: bool,
}

/// The rows of an execution context before a call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RowLengths {
    /// The length of each row in tokens; none before the first call.
    pub rows: Vec<u32>,
    /// The columns of all calls so far, padding included: the P of `attention_mask` `[B, P+S]`.
    pub columns: u32,
    /// What was reserved: rows, and tokens over all of them.
    pub reserved: Option<(u32, u64)>,
}

/// One call of `compute`, checked.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Call {
    /// The final length of each row to come.
    pub reserve: Option<Vec<u32>>,
    /// The tokens to append; none in a call that only reserves.
    pub step: Option<Step>,
    /// With whom the rows may be shared.
    pub cache_salt: Option<Vec<u8>>,
}

/// Tokens to append to each row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The rows as they are after the call.
    pub rows: Vec<RowStep>,
    /// K: of how many of the last columns something is wanted.
    pub keep: u32,
    /// What is wanted of them.
    pub wanted: Wanted,
    /// S: columns of `input_ids`.
    pub columns: u32,
}

/// What is wanted of the positions that a call keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// All logits.
    Logits,
    /// What they are reduced to.
    Reductions {
        /// So many of the most likely tokens.
        top_k: Option<u32>,
        /// The logit of a token for each position, `[B, K]`.
        gather: Option<Vec<i32>>,
        /// The logarithm of the sum of their exponentials.
        log_sum_exp: bool,
        /// The sum of the weights at this scale, and all logits.
        scale: Option<Scale>,
    },
}

/// What logits are multiplied by before they are drawn from: a number above 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale(pub f32);

// Never NaN.
impl Eq for Scale {}

/// What becomes of one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowStep {
    /// The row that it continues; none in the first call.
    pub parent: Option<usize>,
    /// How many of that row's tokens it keeps.
    pub start: u32,
    /// The new tokens; they stand in the last columns.
    pub tokens: Vec<i32>,
}

impl RowStep {
    /// The row's length after the call.
    pub fn end(&self) -> u32 {
        self.start + self.tokens.len() as u32
    }
}

impl Step {
    /// How many of the row's last tokens have their logits wanted.
    pub fn kept(&self, row: &RowStep) -> u32 {
        self.keep.min(row.tokens.len() as u32)
    }
}

/// Reads a call's inputs. `lengths` are the rows before it.
pub fn read(
    inputs: &[(String, &Tensor)],
    lengths: &RowLengths,
    limits: &Limits,
) -> Result<Call, NnError> {
    let inputs = by_name(inputs)?;
    let reserve = match inputs.get(names::RESERVE) {
        Some(tensor) => Some(read_reserve(tensor, lengths, limits)?),
        None => None,
    };
    let step = match inputs.get(names::INPUT_IDS) {
        Some(ids) => {
            let step = Reader { inputs: &inputs, lengths, limits }.step(ids)?;
            check_reservation(&step, reserve.as_deref(), lengths)?;
            Some(step)
        }
        None if reserve.is_some() && inputs.len() == 1 => None,
        None => return Err(NnError::invalid_argument("input_ids is missing")),
    };
    let cache_salt = match inputs.get(names::CACHE_SALT) {
        Some(tensor) => Some(read_salt(tensor)?),
        None => None,
    };
    Ok(Call { reserve, step, cache_salt })
}

type Inputs<'a> = BTreeMap<&'a str, &'a Tensor>;

fn by_name<'a>(inputs: &'a [(String, &'a Tensor)]) -> Result<Inputs<'a>, NnError> {
    let mut found = Inputs::new();
    for (name, tensor) in inputs {
        if name != names::INPUT_IDS && !names::OPTIONAL_INPUTS.contains(&name.as_str()) {
            return Err(NnError::invalid_argument(format!("unknown input {name:?}")));
        }
        if found.insert(name, tensor).is_some() {
            return Err(NnError::invalid_argument(format!("{name} is given twice")));
        }
    }
    Ok(found)
}

fn read_reserve(
    tensor: &Tensor,
    lengths: &RowLengths,
    limits: &Limits,
) -> Result<Vec<u32>, NnError> {
    let name = names::RESERVE;
    expect_shape(name, tensor, "[R]", |shape| shape.len() == 1 && shape[0] > 0)?;
    if lengths.reserved.is_some() || !lengths.rows.is_empty() {
        return Err(NnError::invalid_argument("reserve: only before anything else, and once"));
    }
    let wanted = tensor.to_i64(name)?;
    if wanted.len() > limits.max_rows as usize {
        return Err(NnError::too_large(format!(
            "reserve: {} rows, but an execution context holds at most {}",
            wanted.len(),
            limits.max_rows
        )));
    }
    wanted
        .iter()
        .map(|&length| match u32::try_from(length) {
            Ok(length) if length <= limits.context => Ok(length),
            Ok(length) => Err(NnError::too_large(format!(
                "reserve: a row of {length} tokens, but the context is {} tokens",
                limits.context
            ))),
            Err(_) => Err(NnError::invalid_argument(format!("reserve: {length} is no length"))),
        })
        .collect()
}

fn read_salt(tensor: &Tensor) -> Result<Vec<u8>, NnError> {
    let name = names::CACHE_SALT;
    expect_shape(name, tensor, &format!("[n] with n up to {LONGEST_SALT}"), |shape| {
        shape.len() == 1 && shape[0] <= LONGEST_SALT
    })?;
    tensor.to_u8(name)
}

/// Rows and tokens stay within what was reserved, so that running requests never wait for each other.
fn check_reservation(
    step: &Step,
    reserve: Option<&[u32]>,
    lengths: &RowLengths,
) -> Result<(), NnError> {
    let reserved = reserve
        .map(|rows| (rows.len() as u32, rows.iter().map(|&length| u64::from(length)).sum()))
        .or(lengths.reserved);
    let Some((rows, tokens)) = reserved else { return Ok(()) };
    let wanted: u64 = step.rows.iter().map(|row| u64::from(row.end())).sum();
    if step.rows.len() > rows as usize || wanted > tokens {
        return Err(NnError::invalid_argument(format!(
            "input_ids: {} rows of {wanted} tokens together go past the reserved {rows} rows of {tokens}",
            step.rows.len()
        )));
    }
    Ok(())
}

/// Reads the tensors of one step, all of which depend on each other's shapes.
struct Reader<'a> {
    inputs: &'a Inputs<'a>,
    lengths: &'a RowLengths,
    limits: &'a Limits,
}

impl Reader<'_> {
    fn step(&self, ids: &Tensor) -> Result<Step, NnError> {
        let name = names::INPUT_IDS;
        expect_shape(name, ids, "[B, S]", |shape| {
            shape.len() == 2 && shape.iter().all(|&size| size > 0)
        })?;
        let (batch, columns) = (ids.dimensions[0] as usize, ids.dimensions[1] as usize);
        if batch > self.limits.max_rows as usize {
            return Err(NnError::too_large(format!(
                "input_ids: {batch} rows, but an execution context holds at most {}",
                self.limits.max_rows
            )));
        }
        let ids = ids.to_i64(name)?;
        let parents = self.parents(batch)?;
        let padding = self.padding(batch, columns)?;
        let positions = self.positions(batch, columns)?;
        let keep = self.keep(columns)?;
        let wanted = self.wanted(batch, keep)?;
        self.check_size(batch, keep, &wanted)?;
        let rows = (0..batch)
            .map(|row| {
                let cells = row * columns + padding[row]..(row + 1) * columns;
                let length = parents[row].map_or(0, |parent| self.lengths.rows[parent]);
                let start = match &positions {
                    Some(positions) => self.start(row, length, &positions[cells.clone()])?,
                    None => length,
                };
                let tokens = ids[cells]
                    .iter()
                    .map(|&id| self.token(name, row, id))
                    .collect::<Result<Vec<_>, _>>()?;
                let row_step = RowStep { parent: parents[row], start, tokens };
                self.check_length(row, start as usize + row_step.tokens.len())?;
                Ok(row_step)
            })
            .collect::<Result<_, NnError>>()?;
        Ok(Step { rows, keep, wanted, columns: columns as u32 })
    }

    fn token(&self, name: &str, row: usize, id: i64) -> Result<i32, NnError> {
        match i32::try_from(id) {
            Ok(token) if (0..i64::from(self.limits.vocab_size)).contains(&id) => Ok(token),
            _ => Err(NnError::invalid_argument(format!(
                "{name}: {id} in row {row} is outside the vocabulary of {}",
                self.limits.vocab_size
            ))),
        }
    }

    fn check_length(&self, row: usize, length: usize) -> Result<(), NnError> {
        if length <= self.limits.context as usize {
            return Ok(());
        }
        Err(NnError::too_large(format!(
            "input_ids: row {row} would be {length} tokens long, but the context is {} tokens",
            self.limits.context
        )))
    }

    /// For each row, the old row that it continues.
    fn parents(&self, batch: usize) -> Result<Vec<Option<usize>>, NnError> {
        let name = names::BEAM_IDX;
        let old = self.lengths.rows.len();
        let Some(tensor) = self.inputs.get(name) else {
            return match old {
                0 => Ok(vec![None; batch]),
                _ if old == batch => Ok((0..batch).map(Some).collect()),
                _ => Err(NnError::invalid_argument(format!(
                    "input_ids: {batch} rows, but the context has {old}, and no beam_idx says which"
                ))),
            };
        };
        expect_shape(name, tensor, &format!("[{batch}]"), |shape| shape == [batch as u32])?;
        let existing = if old == 0 { batch } else { old };
        tensor
            .to_i32(name)?
            .into_iter()
            .map(|index| match usize::try_from(index) {
                Ok(index) if index < existing => Ok((old > 0).then_some(index)),
                _ => Err(NnError::invalid_argument(format!(
                    "beam_idx: there is no row {index} of {existing}"
                ))),
            })
            .collect()
    }

    /// For each row, how many columns on the left are padding.
    fn padding(&self, batch: usize, columns: usize) -> Result<Vec<usize>, NnError> {
        let name = names::ATTENTION_MASK;
        let Some(tensor) = self.inputs.get(name) else { return Ok(vec![0; batch]) };
        let whole = self.lengths.columns as usize + columns;
        expect_shape(
            name,
            tensor,
            &format!("[{batch}, {columns}] or [{batch}, {whole}]"),
            |shape| {
                shape.len() == 2
                    && shape[0] as usize == batch
                    && [columns, whole].contains(&(shape[1] as usize))
            },
        )?;
        let width = tensor.dimensions[1] as usize;
        let mask = tensor.to_i64(name)?;
        mask.chunks_exact(width)
            .enumerate()
            .map(|(row, mask)| {
                let new = &mask[width - columns..];
                let padding = new.iter().take_while(|&&value| value == 0).count();
                if new[padding..].iter().all(|&value| value == 1) {
                    Ok(padding)
                } else {
                    Err(NnError::invalid_argument(format!(
                        "attention_mask: row {row} must be zeros, then ones: rows are padded on the left"
                    )))
                }
            })
            .collect()
    }

    fn positions(&self, batch: usize, columns: usize) -> Result<Option<Vec<i64>>, NnError> {
        let name = names::POSITION_IDS;
        let Some(tensor) = self.inputs.get(name) else { return Ok(None) };
        expect_shape(name, tensor, &format!("[{batch}, {columns}]"), |shape| {
            shape == [batch as u32, columns as u32]
        })?;
        tensor.to_i64(name).map(Some)
    }

    /// Where a row goes on, from the positions of its new tokens.
    fn start(&self, row: usize, length: u32, positions: &[i64]) -> Result<u32, NnError> {
        let Some(&first) = positions.first() else { return Ok(length) };
        if positions.windows(2).any(|pair| pair[0].checked_add(1) != Some(pair[1])) {
            return Err(NnError::invalid_argument(format!(
                "position_ids: the positions of row {row} must rise by one"
            )));
        }
        match u32::try_from(first) {
            Ok(start) if start == length => Ok(start),
            // A row can always begin anew.
            Ok(0) => Ok(0),
            Ok(start) if start < length && self.limits.rewinds => Ok(start),
            Ok(start) if start < length => Err(NnError::unsupported(format!(
                "position_ids: row {row} has {length} tokens, and this model's memory can't be cut back to {start}"
            ))),
            _ => Err(NnError::invalid_argument(format!(
                "position_ids: row {row} has {length} tokens, so it can't go on at {first}"
            ))),
        }
    }

    /// K, within the columns.
    fn keep(&self, columns: usize) -> Result<u32, NnError> {
        let name = names::LOGITS_TO_KEEP;
        let Some(tensor) = self.inputs.get(name) else { return Ok(columns as u32) };
        expect_shape(name, tensor, "[1]", |shape| shape == [1])?;
        let keep = tensor.to_i64(name)?[0];
        let keep = u32::try_from(keep).map_err(|_| {
            NnError::invalid_argument(format!("{name}: {keep} is no number of positions"))
        })?;
        Ok(keep.min(columns as u32))
    }

    fn wanted(&self, batch: usize, keep: u32) -> Result<Wanted, NnError> {
        let top_k = match self.inputs.get(names::TOP_K) {
            Some(tensor) => Some(self.top_k(tensor)?),
            None => None,
        };
        let gather = match self.inputs.get(names::GATHER_IDS) {
            Some(tensor) => Some(self.gather(tensor, batch, keep)?),
            None => None,
        };
        let log_sum_exp = self.log_sum_exp()?;
        let scale = self.scale()?;
        match (top_k, gather) {
            (None, _) if scale.is_some() => {
                Err(NnError::invalid_argument(format!("{}: only with top_k", names::SCALE)))
            }
            (None, None) => Ok(Wanted::Logits),
            (top_k, gather) => Ok(Wanted::Reductions { top_k, gather, log_sum_exp, scale }),
        }
    }

    fn scale(&self) -> Result<Option<Scale>, NnError> {
        let name = names::SCALE;
        let Some(tensor) = self.inputs.get(name) else { return Ok(None) };
        expect_shape(name, tensor, "[1]", |shape| shape == [1])?;
        match tensor.to_f32(name)?[0] {
            scale if scale.is_finite() && scale > 0.0 => Ok(Some(Scale(scale))),
            other => Err(NnError::invalid_argument(format!("{name}: {other} isn't above 0"))),
        }
    }

    fn log_sum_exp(&self) -> Result<bool, NnError> {
        let name = names::LOGSUMEXP;
        let Some(tensor) = self.inputs.get(name) else { return Ok(true) };
        expect_shape(name, tensor, "[1]", |shape| shape == [1])?;
        match tensor.to_i32(name)?[0] {
            wanted @ 0..=1 => Ok(wanted == 1),
            other => Err(NnError::invalid_argument(format!("{name}: {other} is neither 0 nor 1"))),
        }
    }

    fn top_k(&self, tensor: &Tensor) -> Result<u32, NnError> {
        let name = names::TOP_K;
        expect_shape(name, tensor, "[1]", |shape| shape == [1])?;
        let wanted = tensor.to_i32(name)?[0];
        let most = names::MOST_TOP_K.min(self.limits.vocab_size);
        match u32::try_from(wanted) {
            Ok(top_k) if top_k <= most => Ok(top_k),
            _ => Err(NnError::invalid_argument(format!("{name}: {wanted} is not in 0 to {most}"))),
        }
    }

    fn gather(&self, tensor: &Tensor, batch: usize, keep: u32) -> Result<Vec<i32>, NnError> {
        let name = names::GATHER_IDS;
        expect_shape(name, tensor, &format!("[{batch}, {keep}]"), |shape| {
            shape == [batch as u32, keep]
        })?;
        let ids = tensor.to_i32(name)?;
        for (at, &id) in ids.iter().enumerate() {
            self.token(name, at / (keep as usize).max(1), i64::from(id))?;
        }
        Ok(ids)
    }

    /// One answer has its bounds.
    fn check_size(&self, batch: usize, keep: u32, wanted: &Wanted) -> Result<(), NnError> {
        let (name, floats) = match wanted {
            Wanted::Logits => (names::LOGITS_TO_KEEP, self.limits.vocab_size),
            Wanted::Reductions { top_k, scale, .. } => {
                let row = if scale.is_some() { self.limits.vocab_size } else { 0 };
                (names::TOP_K, 2 * top_k.unwrap_or(0) + 4 + row)
            }
        };
        let bytes = batch as u64 * u64::from(keep) * u64::from(floats) * 4;
        if bytes <= MOST_OUTPUT_BYTES {
            return Ok(());
        }
        Err(NnError::too_large(format!(
            "{name}: {bytes} bytes of outputs, but one call gives at most {MOST_OUTPUT_BYTES}"
        )))
    }
}

fn expect_shape(
    name: &str,
    tensor: &Tensor,
    wanted: &str,
    is_right: impl Fn(&[u32]) -> bool,
) -> Result<(), NnError> {
    if is_right(&tensor.dimensions) {
        return Ok(());
    }
    Err(NnError::invalid_argument(format!(
        "{name}: the shape must be {wanted}, not {:?}",
        tensor.dimensions
    )))
}

#[cfg(test)]
mod tests;
