//! Which columns of a stateful model's memory belong to which row.
//!
//! The memory of such a model (as optimum-intel exports it for OpenVINO) has as many columns for every row,
//! and a mask says which of them a row attends to: rows of unequal length are padded on the left, and a row
//! that begins anew attends to none of what it had. Rows are forked, put in another order and dropped by
//! naming old ones in `beam_idx`.
//!
//! Both sides use it: the host before its own backend, and the component where the host gives it the model as
//! it is.

/// What becomes of one row in a step.
#[derive(Debug, Clone, Copy)]
pub struct RowTokens<'a, T> {
    /// The row that it continues; none if there are no rows yet.
    pub parent: Option<usize>,
    /// How many of that row's tokens it keeps: all or none.
    pub start: usize,
    /// The new tokens.
    pub tokens: &'a [T],
}

/// The rows of an execution context in the model's memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Columns {
    /// For each row, which of the columns are its own. All are of the same length.
    masks: Vec<Vec<bool>>,
    /// For each row, where in the memory it is; the next pass brings the rows into order.
    order: Vec<i32>,
}

/// One pass through the model: B rows of S new columns behind P that are there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pass {
    /// Whether the memory is to be emptied before.
    pub anew: bool,
    /// B.
    pub rows: usize,
    /// S.
    pub columns: usize,
    /// `[B, S]`.
    pub input_ids: Vec<i64>,
    /// `[B, P + S]`.
    pub attention_mask: Vec<i64>,
    /// `[B, S]`.
    pub position_ids: Vec<i64>,
    /// `[B]`.
    pub beam_idx: Vec<i32>,
    /// What of the logits `[B, S, V]` is wanted.
    pub kept: Vec<Kept>,
}

/// A position whose logits are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// Which of the pass's positions, counted through `[B, S]`.
    pub position: usize,
    /// Which of the step's outputs, counted through `[B, K]`.
    pub cell: usize,
}

impl Columns {
    /// The length of a row in tokens; 0 if there is no such row.
    pub fn length(&self, row: usize) -> usize {
        self.masks.get(row).map_or(0, |mask| mask.iter().filter(|own| **own).count())
    }

    /// The passes of a step, each of so many columns at most; none when no row has new tokens. Of each row,
    /// the logits of its last `keep` tokens are wanted.
    pub fn passes<T: Copy + Into<i64>>(
        &mut self,
        rows: &[RowTokens<'_, T>],
        keep: usize,
        most: usize,
    ) -> Vec<Pass> {
        let anew = rows.iter().all(|row| row.start == 0);
        let taken = rows.iter().enumerate().map(|(at, row)| match row.parent {
            Some(parent) if !anew => {
                let mut mask = self.masks[parent].clone();
                if row.start == 0 {
                    mask.fill(false);
                }
                (mask, self.order[parent])
            }
            _ => (Vec::new(), at as i32),
        });
        (self.masks, self.order) = taken.collect::<Vec<_>>().into_iter().unzip();
        let width = rows.iter().map(|row| row.tokens.len()).max().unwrap_or(0);
        (0..width)
            .step_by(most.max(1))
            .map(|first| {
                let columns = first..width.min(first.saturating_add(most));
                let mut pass = self.pass(rows, keep, width, columns);
                pass.anew = anew && first == 0;
                pass
            })
            .collect()
    }

    /// The pass of these columns, of `width` that the step has.
    fn pass<T: Copy + Into<i64>>(
        &mut self,
        rows: &[RowTokens<'_, T>],
        keep: usize,
        width: usize,
        columns: std::ops::Range<usize>,
    ) -> Pass {
        let count = rows.len();
        let mut pass = Pass {
            anew: false,
            rows: count,
            columns: columns.len(),
            input_ids: Vec::with_capacity(count * columns.len()),
            attention_mask: Vec::new(),
            position_ids: Vec::with_capacity(count * columns.len()),
            beam_idx: std::mem::replace(&mut self.order, (0..count as i32).collect()),
            kept: Vec::new(),
        };
        for (at, row) in rows.iter().enumerate() {
            let padding = width - row.tokens.len();
            for column in columns.clone() {
                let token = column.checked_sub(padding);
                self.masks[at].push(token.is_some());
                pass.input_ids.push(token.map_or(0, |token| row.tokens[token].into()));
                pass.position_ids.push(token.map_or(0, |token| (row.start + token) as i64));
                let from_end = width - column;
                if token.is_some() && from_end <= keep {
                    pass.kept.push(Kept {
                        position: at * columns.len() + column - columns.start,
                        cell: (at + 1) * keep - from_end,
                    });
                }
            }
            pass.attention_mask.extend(self.masks[at].iter().map(|&own| i64::from(own)));
        }
        pass
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The passes of rows of (parent, start, tokens).
    fn passes(
        columns: &mut Columns,
        keep: usize,
        most: usize,
        rows: &[(Option<usize>, usize, &[i32])],
    ) -> Vec<Pass> {
        let rows: Vec<_> = rows
            .iter()
            .map(|&(parent, start, tokens)| RowTokens { parent, start, tokens })
            .collect();
        columns.passes(&rows, keep, most)
    }

    fn kept(position: usize, cell: usize) -> Kept {
        Kept { position, cell }
    }

    #[test]
    fn rows_are_padded_on_the_left_forked_and_dropped() {
        let mut columns = Columns::default();
        let prompts: &[(_, _, &[_])] = &[(None, 0, &[1, 2, 3]), (None, 0, &[7])];
        let [pass] = &passes(&mut columns, 1, 8, prompts)[..] else { panic!("one pass") };
        assert!(pass.anew);
        assert_eq!((pass.rows, pass.columns), (2, 3));
        assert_eq!(pass.input_ids, [1, 2, 3, 0, 0, 7]);
        assert_eq!(pass.attention_mask, [1, 1, 1, 0, 0, 1]);
        assert_eq!(pass.position_ids, [0, 1, 2, 0, 0, 0]);
        assert_eq!(pass.beam_idx, [0, 1]);
        assert_eq!(pass.kept, [kept(2, 0), kept(5, 1)]);

        // The second row is forked, the first is gone.
        let next: &[(_, _, &[_])] = &[(Some(1), 1, &[8]), (Some(1), 1, &[9])];
        let [pass] = &passes(&mut columns, 1, 8, next)[..] else { panic!("one pass") };
        assert!(!pass.anew);
        assert_eq!(pass.input_ids, [8, 9]);
        assert_eq!(pass.attention_mask, [0, 0, 1, 1, 0, 0, 1, 1]);
        assert_eq!(pass.position_ids, [1, 1]);
        assert_eq!(pass.beam_idx, [1, 1]);
    }

    #[test]
    fn long_prompts_are_cut_into_passes() {
        let mut columns = Columns::default();
        let prompts: &[(_, _, &[_])] = &[(None, 0, &[1, 2, 3, 4, 5]), (None, 0, &[6, 7])];
        let passes = passes(&mut columns, 2, 2, prompts);
        let ids: Vec<_> = passes.iter().map(|pass| pass.input_ids.clone()).collect();
        assert_eq!(ids, [vec![1, 2, 0, 0], vec![3, 4, 0, 6], vec![5, 7]]);
        assert_eq!(passes.iter().map(|pass| pass.anew).collect::<Vec<_>>(), [true, false, false]);
        assert_eq!(passes[1].attention_mask, [1, 1, 1, 1, 0, 0, 0, 1]);
        assert_eq!(passes[1].position_ids, [2, 3, 0, 0]);
        assert_eq!(passes[1].kept, [kept(1, 0), kept(3, 2)]);
        assert_eq!(passes[2].kept, [kept(0, 1), kept(1, 3)]);
    }

    #[test]
    fn a_row_that_begins_anew_attends_to_nothing_of_before() {
        let mut columns = Columns::default();
        passes(&mut columns, 1, 8, &[(None, 0, &[1, 2]), (None, 0, &[3, 4])]);
        let one: &[(_, _, &[_])] = &[(Some(0), 2, &[5]), (Some(1), 0, &[6])];
        let [pass] = &passes(&mut columns, 1, 8, one)[..] else { panic!("one pass") };
        assert!(!pass.anew);
        assert_eq!(pass.attention_mask, [1, 1, 1, 0, 0, 1]);
        assert_eq!(pass.position_ids, [2, 0]);
        // All of them: the memory is emptied.
        let all: &[(_, _, &[_])] = &[(Some(0), 0, &[5]), (Some(0), 0, &[6]), (Some(1), 0, &[7])];
        let [pass] = &passes(&mut columns, 1, 8, all)[..] else { panic!("one pass") };
        assert!(pass.anew);
        assert_eq!(
            (&pass.attention_mask[..], &pass.beam_idx[..]),
            (&[1, 1, 1][..], &[0, 1, 2][..])
        );
    }

    #[test]
    fn a_row_with_nothing_new_is_left_as_it_is() {
        let mut columns = Columns::default();
        passes(&mut columns, 1, 8, &[(None, 0, &[1]), (None, 0, &[2])]);
        let pass = passes(&mut columns, 1, 8, &[(Some(0), 1, &[3]), (Some(1), 1, &[])]);
        assert_eq!(pass[0].attention_mask, [1, 1, 1, 0]);
        assert_eq!(pass[0].kept, [kept(0, 0)]);
        // Forks without tokens wait for the next pass.
        let forks = passes(&mut columns, 1, 8, &[(Some(1), 1, &[]), (Some(0), 2, &[])]);
        assert_eq!(forks, []);
        let pass = passes(&mut columns, 1, 8, &[(Some(0), 1, &[4]), (Some(1), 2, &[5])]);
        assert_eq!(pass[0].beam_idx, [1, 0]);
        assert_eq!(pass[0].attention_mask, [1, 0, 1, 1, 1, 1]);
        assert_eq!(pass[0].position_ids, [1, 2]);
    }
}
