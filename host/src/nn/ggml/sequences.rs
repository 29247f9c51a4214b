//! The rows of one execution context and the sequences of llama.cpp's memory that hold them.
//!
//! A call of the convention says of each row after it which row before it it continues. [`plan`]
//! turns that into the fewest operations on sequences: the first child of a row takes its sequence
//! over in place, further ones copy it, and rows without children give theirs back. A row that keeps
//! nothing of its parent begins anew, in an empty sequence. Pure.

use spinfer_llama::SequenceId;

use crate::nn::convention::RowStep;

/// A row and its sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// Where it is in llama.cpp's memory.
    pub sequence: SequenceId,
    /// Its length in tokens.
    pub length: u32,
}

/// One operation on llama.cpp's memory, to be done in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Forget a sequence.
    Remove(SequenceId),
    /// Make `to` an equal of `from`.
    Copy { from: SequenceId, to: SequenceId },
    /// Forget a sequence's tokens from a position on.
    Truncate { sequence: SequenceId, from: u32 },
}

/// The rows after a call, before its tokens are computed, and how to get there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The rows; their lengths are those that they keep of their parents.
    pub rows: Vec<Row>,
    /// What to do, in order.
    pub operations: Vec<Operation>,
    /// The sequences of the context that hold no row.
    pub spare: Vec<SequenceId>,
}

/// Plans a call over `rows`, with `spare` sequences to take from. `None` when there are too few.
pub fn plan(rows: &[Row], spare: &[SequenceId], steps: &[RowStep]) -> Option<Plan> {
    let mut spare = spare.to_vec();
    let mut operations = Vec::new();
    let mut has_child = vec![false; rows.len()];
    let parent_of = |step: &RowStep| step.parent.filter(|_| step.start > 0);
    for parent in steps.iter().filter_map(parent_of) {
        *has_child.get_mut(parent)? = true;
    }
    for (row, _) in rows.iter().zip(&has_child).filter(|&(_, has_child)| !has_child) {
        operations.push(Operation::Remove(row.sequence));
        spare.push(row.sequence);
    }
    let mut taken = vec![false; rows.len()];
    let mut truncations = Vec::new();
    let mut new_rows = Vec::with_capacity(steps.len());
    for step in steps {
        let (sequence, length) = match parent_of(step) {
            None => (spare.pop()?, 0),
            Some(parent) if std::mem::replace(&mut taken[parent], true) => {
                let to = spare.pop()?;
                operations.push(Operation::Copy { from: rows[parent].sequence, to });
                (to, rows[parent].length)
            }
            Some(parent) => (rows[parent].sequence, rows[parent].length),
        };
        if step.start < length {
            truncations.push(Operation::Truncate { sequence, from: step.start });
        }
        new_rows.push(Row { sequence, length: step.start });
    }
    // Copies are whole, so parents are cut only when all their children have been made.
    operations.extend(truncations);
    Some(Plan { rows: new_rows, operations, spare })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(sequence: SequenceId, length: u32) -> Row {
        Row { sequence, length }
    }

    fn step(parent: Option<usize>, start: u32) -> RowStep {
        RowStep { parent, start, tokens: vec![1] }
    }

    #[test]
    fn plain_continuation_does_nothing() {
        let rows = [row(0, 5), row(1, 6)];
        let plan = plan(&rows, &[2], &[step(Some(0), 5), step(Some(1), 6)]).unwrap();
        assert_eq!(plan, Plan { rows: rows.to_vec(), operations: vec![], spare: vec![2] });
    }

    #[test]
    fn the_first_child_takes_over_and_the_others_copy() {
        let plan =
            plan(&[row(0, 5)], &[3, 2, 1], &[step(Some(0), 5), step(Some(0), 5), step(Some(0), 5)])
                .unwrap();
        assert_eq!(plan.rows, [row(0, 5), row(1, 5), row(2, 5)]);
        assert_eq!(
            plan.operations,
            [Operation::Copy { from: 0, to: 1 }, Operation::Copy { from: 0, to: 2 }]
        );
        assert_eq!(plan.spare, [3]);
    }

    #[test]
    fn a_dropped_row_makes_room_for_a_fork() {
        let plan =
            plan(&[row(0, 5), row(1, 7)], &[], &[step(Some(1), 7), step(Some(1), 7)]).unwrap();
        assert_eq!(plan.rows, [row(1, 7), row(0, 7)]);
        assert_eq!(plan.operations, [Operation::Remove(0), Operation::Copy { from: 1, to: 0 }]);
    }

    #[test]
    fn parents_are_cut_after_their_children_are_made() {
        let plan = plan(&[row(0, 5)], &[1], &[step(Some(0), 2), step(Some(0), 5)]).unwrap();
        assert_eq!(plan.rows, [row(0, 2), row(1, 5)]);
        assert_eq!(
            plan.operations,
            [Operation::Copy { from: 0, to: 1 }, Operation::Truncate { sequence: 0, from: 2 }]
        );
    }

    #[test]
    fn rows_that_begin_anew_copy_nothing() {
        let plan =
            plan(&[row(0, 5), row(1, 7)], &[2], &[step(Some(0), 0), step(Some(0), 0)]).unwrap();
        assert_eq!(plan.rows, [row(1, 0), row(0, 0)]);
        assert_eq!(plan.operations, [Operation::Remove(0), Operation::Remove(1)]);
        assert_eq!(plan.spare, [2]);
    }

    #[test]
    fn too_few_sequences_is_no_plan() {
        assert!(plan(&[row(0, 5)], &[], &[step(Some(0), 5), step(Some(0), 5)]).is_none());
        assert!(plan(&[], &[], &[step(None, 0)]).is_none());
    }
}
