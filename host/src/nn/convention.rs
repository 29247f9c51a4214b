//! The causal-LM convention: from named tensors to what a backend is to do.
//!
//! Everything that can be wrong with a call is found here, before any backend sees it, so a backend
//! gets token ids that exist, rows that exist and shapes that agree. Pure: no backend, no I/O.

use std::collections::BTreeMap;

use spinfer_protocol::tensor as names;

use super::{NnError, Tensor};

/// The most bytes of logits that one call may ask for.
const MOST_LOGITS_BYTES: u64 = 512 << 20;

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
}

/// Tokens to append to each row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The rows as they are after the call.
    pub rows: Vec<RowStep>,
    /// K: of how many of the last columns the logits are wanted.
    pub keep: u32,
    /// S: columns of `input_ids`.
    pub columns: u32,
}

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
    Ok(Call { reserve, step })
}

type Inputs<'a> = BTreeMap<&'a str, &'a Tensor>;

fn by_name<'a>(inputs: &'a [(String, &'a Tensor)]) -> Result<Inputs<'a>, NnError> {
    const KNOWN: [&str; 6] = [
        names::INPUT_IDS,
        names::ATTENTION_MASK,
        names::POSITION_IDS,
        names::BEAM_IDX,
        names::LOGITS_TO_KEEP,
        names::RESERVE,
    ];
    let mut found = Inputs::new();
    for (name, tensor) in inputs {
        if !KNOWN.contains(&name.as_str()) {
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
        let keep = self.keep(batch, columns)?;
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
                    .map(|&id| self.token(row, id))
                    .collect::<Result<Vec<_>, _>>()?;
                let row_step = RowStep { parent: parents[row], start, tokens };
                self.check_length(row, start as usize + row_step.tokens.len())?;
                Ok(row_step)
            })
            .collect::<Result<_, NnError>>()?;
        Ok(Step { rows, keep, columns: columns as u32 })
    }

    fn token(&self, row: usize, id: i64) -> Result<i32, NnError> {
        match i32::try_from(id) {
            Ok(token) if (0..i64::from(self.limits.vocab_size)).contains(&id) => Ok(token),
            _ => Err(NnError::invalid_argument(format!(
                "input_ids: {id} in row {row} is outside the vocabulary of {}",
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
            Ok(start) if start < length && self.limits.rewinds => Ok(start),
            Ok(start) if start < length => Err(NnError::unsupported(format!(
                "position_ids: row {row} has {length} tokens, and this model's memory can't be cut back to {start}"
            ))),
            _ => Err(NnError::invalid_argument(format!(
                "position_ids: row {row} has {length} tokens, so it can't go on at {first}"
            ))),
        }
    }

    /// K, within the columns and the bytes that one answer may have.
    fn keep(&self, batch: usize, columns: usize) -> Result<u32, NnError> {
        let name = names::LOGITS_TO_KEEP;
        let keep = match self.inputs.get(name) {
            None => columns as u32,
            Some(tensor) => {
                expect_shape(name, tensor, "[1]", |shape| shape == [1])?;
                let keep = tensor.to_i64(name)?[0];
                let keep = u32::try_from(keep).map_err(|_| {
                    NnError::invalid_argument(format!(
                        "logits_to_keep: {keep} is no number of positions"
                    ))
                })?;
                keep.min(columns as u32)
            }
        };
        let bytes = batch as u64 * u64::from(keep) * u64::from(self.limits.vocab_size) * 4;
        if bytes > MOST_LOGITS_BYTES {
            return Err(NnError::too_large(format!(
                "logits_to_keep: {bytes} bytes of logits, but one call gives at most {MOST_LOGITS_BYTES}"
            )));
        }
        Ok(keep)
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
mod tests {
    use super::super::{Element, NnErrorCode};
    use super::*;

    const LIMITS: Limits = Limits { vocab_size: 100, context: 10, max_rows: 4, rewinds: true };

    fn i64s(dimensions: &[u32], values: &[i64]) -> Tensor {
        Tensor {
            dimensions: dimensions.to_vec(),
            element: Element::I64,
            data: values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        }
    }

    fn i32s(values: &[i32]) -> Tensor {
        Tensor {
            dimensions: vec![values.len() as u32],
            element: Element::I32,
            data: values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        }
    }

    fn call(inputs: &[(&str, &Tensor)], lengths: &RowLengths) -> Result<Call, NnError> {
        let inputs: Vec<_> =
            inputs.iter().map(|(name, tensor)| (name.to_string(), *tensor)).collect();
        read(&inputs, lengths, &LIMITS)
    }

    fn lengths(rows: &[u32]) -> RowLengths {
        RowLengths { rows: rows.to_vec(), columns: 3, reserved: None }
    }

    fn row(parent: Option<usize>, start: u32, tokens: &[i32]) -> RowStep {
        RowStep { parent, start, tokens: tokens.to_vec() }
    }

    #[test]
    fn ragged_prompts_are_padded_on_the_left() {
        let ids = i64s(&[2, 3], &[0, 0, 7, 1, 2, 3]);
        let mask = i64s(&[2, 3], &[0, 0, 1, 1, 1, 1]);
        let keep = i64s(&[1], &[1]);
        let inputs = [("input_ids", &ids), ("attention_mask", &mask), ("logits_to_keep", &keep)];
        let step = call(&inputs, &RowLengths::default()).unwrap().step.unwrap();
        assert_eq!(step.rows, [row(None, 0, &[7]), row(None, 0, &[1, 2, 3])]);
        assert_eq!(step.keep, 1);
    }

    #[test]
    fn the_mask_may_span_past_and_new_columns() {
        let ids = i64s(&[2, 1], &[5, 6]);
        let mask = i64s(&[2, 4], &[0, 1, 1, 0, 1, 1, 1, 1]);
        let step = call(&[("input_ids", &ids), ("attention_mask", &mask)], &lengths(&[2, 3]));
        let rows = step.unwrap().step.unwrap().rows;
        assert_eq!(rows, [row(Some(0), 2, &[]), row(Some(1), 3, &[6])]);
    }

    #[test]
    fn beam_idx_forks_reorders_and_drops() {
        let ids = i64s(&[3, 1], &[5, 6, 7]);
        let beams = i32s(&[1, 1, 0]);
        let step = call(&[("input_ids", &ids), ("beam_idx", &beams)], &lengths(&[2, 3]));
        let rows = step.unwrap().step.unwrap().rows;
        assert_eq!(rows, [row(Some(1), 3, &[5]), row(Some(1), 3, &[6]), row(Some(0), 2, &[7])]);
    }

    #[test]
    fn positions_below_the_length_rewind() {
        let ids = i64s(&[1, 2], &[5, 6]);
        let positions = i64s(&[1, 2], &[1, 2]);
        let inputs = [("input_ids", &ids), ("position_ids", &positions)];
        let rows = call(&inputs, &lengths(&[3])).unwrap().step.unwrap().rows;
        assert_eq!(rows, [row(Some(0), 1, &[5, 6])]);
        let fixed = Limits { rewinds: false, ..LIMITS };
        let inputs: Vec<_> = inputs.iter().map(|(n, t)| (n.to_string(), *t)).collect();
        let error = read(&inputs, &lengths(&[3]), &fixed).unwrap_err();
        assert_eq!(error.code, NnErrorCode::UnsupportedOperation);
    }

    #[test]
    fn a_reservation_may_come_alone_or_with_tokens() {
        let reserve = i64s(&[2], &[10, 4]);
        let alone = call(&[("reserve", &reserve)], &RowLengths::default()).unwrap();
        assert_eq!(alone, Call { reserve: Some(vec![10, 4]), step: None });
        let ids = i64s(&[1, 1], &[5]);
        let both = call(&[("reserve", &reserve), ("input_ids", &ids)], &RowLengths::default());
        assert!(both.unwrap().step.is_some());
        let late = call(&[("reserve", &reserve)], &lengths(&[1])).unwrap_err();
        assert_eq!(late.code, NnErrorCode::InvalidArgument);
    }

    /// Inputs, the rows before them, and what the error must be and say.
    type Wrong = (Vec<(&'static str, Tensor)>, RowLengths, NnErrorCode, &'static str);

    #[test]
    fn what_is_wrong_is_named() {
        let ids = i64s(&[1, 2], &[5, 6]);
        let none = RowLengths::default();
        let cases: Vec<Wrong> = vec![
            (vec![], none.clone(), NnErrorCode::InvalidArgument, "input_ids"),
            (vec![("inputs", ids.clone())], none.clone(), NnErrorCode::InvalidArgument, "inputs"),
            (
                vec![("input_ids", ids.clone()), ("input_ids", ids.clone())],
                none.clone(),
                NnErrorCode::InvalidArgument,
                "input_ids is given twice",
            ),
            (
                vec![("input_ids", i64s(&[2], &[1, 2]))],
                none.clone(),
                NnErrorCode::InvalidArgument,
                "[B, S]",
            ),
            (
                vec![("input_ids", i64s(&[1, 0], &[]))],
                none.clone(),
                NnErrorCode::InvalidArgument,
                "[B, S]",
            ),
            (
                vec![("input_ids", i64s(&[1, 3], &[1, 2]))],
                none.clone(),
                NnErrorCode::InvalidArgument,
                "16 bytes",
            ),
            (
                vec![("input_ids", i64s(&[u32::MAX, u32::MAX], &[]))],
                none.clone(),
                NnErrorCode::TooLarge,
                "rows",
            ),
            (
                vec![("input_ids", i32s(&[1]))],
                none.clone(),
                NnErrorCode::InvalidArgument,
                "input_ids",
            ),
            (
                vec![("input_ids", i64s(&[1, 1], &[100]))],
                none.clone(),
                NnErrorCode::InvalidArgument,
                "100",
            ),
            (
                vec![("input_ids", i64s(&[1, 1], &[-1]))],
                none.clone(),
                NnErrorCode::InvalidArgument,
                "-1",
            ),
            (
                vec![("input_ids", i64s(&[1, 11], &[1; 11]))],
                none.clone(),
                NnErrorCode::TooLarge,
                "11",
            ),
            (
                vec![("input_ids", ids.clone())],
                lengths(&[1, 1]),
                NnErrorCode::InvalidArgument,
                "beam_idx",
            ),
            (
                vec![("input_ids", ids.clone()), ("beam_idx", i32s(&[2]))],
                lengths(&[1, 1]),
                NnErrorCode::InvalidArgument,
                "beam_idx",
            ),
            (
                vec![("input_ids", ids.clone()), ("attention_mask", i64s(&[1, 2], &[1, 0]))],
                none.clone(),
                NnErrorCode::InvalidArgument,
                "attention_mask",
            ),
            (
                vec![("input_ids", ids.clone()), ("position_ids", i64s(&[1, 2], &[0, 2]))],
                none.clone(),
                NnErrorCode::InvalidArgument,
                "position_ids",
            ),
            (
                vec![("input_ids", ids.clone()), ("position_ids", i64s(&[1, 2], &[4, 5]))],
                lengths(&[3]),
                NnErrorCode::InvalidArgument,
                "position_ids",
            ),
            (
                vec![("input_ids", ids.clone()), ("logits_to_keep", i64s(&[1], &[-1]))],
                none.clone(),
                NnErrorCode::InvalidArgument,
                "logits_to_keep",
            ),
            (vec![("reserve", i64s(&[1], &[11]))], none.clone(), NnErrorCode::TooLarge, "11"),
            (vec![("reserve", i64s(&[5], &[1; 5]))], none.clone(), NnErrorCode::TooLarge, "5 rows"),
            (
                vec![("input_ids", ids.clone())],
                RowLengths { reserved: Some((1, 1)), ..none.clone() },
                NnErrorCode::InvalidArgument,
                "reserved",
            ),
        ];
        for (inputs, lengths, code, words) in &cases {
            let inputs: Vec<_> = inputs.iter().map(|(name, tensor)| (*name, tensor)).collect();
            let error = call(&inputs, lengths).unwrap_err();
            assert_eq!(error.code, *code, "{}", error.message);
            assert!(error.message.contains(words), "{:?} should say {words:?}", error.message);
        }
    }
}
