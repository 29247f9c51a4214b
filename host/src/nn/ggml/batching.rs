//! What goes into a step: which tokens of which rows, and in what order. Pure.
//!
//! Rows that want one token (decode) always go in; prompts (prefill) fill what is left, oldest first. Beside
//! decodes, long prompts go in by chunks, so that one of them holds up the others by no more than a chunk at
//! a time; short ones go in whole, since each step that they are spread over is one in which all wait.
//!
//! The order matters: where sequences have memory of their own, llama.cpp computes together only
//! sequences whose numbers follow each other, in the order in which it finds them
//! (`llama_batch_allocr::split_equal`). A batch that is out of order, or has a hole, is computed in
//! several goes, of which each reads all weights. So parts are in the order of their sequences, and small
//! holes are filled with a token of the idle sequence there, which is forgotten again at once.

use spinfer_llama::SequenceId;

/// A row that has tokens to compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wish {
    /// Where it is in llama.cpp's memory.
    pub sequence: SequenceId,
    /// How many tokens there are still to compute, at least one.
    pub left: usize,
    /// After how many of the last of them there are outputs to take.
    pub keep: usize,
    /// Whether it is one generated token, and not a prompt's last.
    pub decodes: bool,
}

/// What one step may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Tokens.
    pub batch: usize,
    /// Tokens of long prompts: all of the batch where nobody else waits for the step. What is longer than
    /// this is long.
    pub chunk: usize,
    /// Tokens after which there are outputs to take.
    pub outputs: usize,
}

/// What a step computes of one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The next tokens of a wish, by its number.
    Row { wish: usize, tokens: usize },
    /// A token for the sake of the order only.
    Filler(SequenceId),
}

/// More fillers than this cost as much as computing in two goes.
const WIDEST_HOLE: usize = 2;

/// The parts of a step, in the order of their sequences. `wishes` are in the order of their arrival;
/// `can_fill` says whether a sequence that isn't among them can take a token and give it back.
pub fn compose(
    wishes: &[Wish],
    limits: &Limits,
    can_fill: impl Fn(SequenceId) -> bool,
) -> Vec<Part> {
    let mut room = Room { tokens: limits.batch, outputs: limits.outputs };
    let mut parts = Vec::with_capacity(wishes.len());
    let numbered = || wishes.iter().enumerate();
    for (wish, row) in numbered().filter(|(_, row)| row.decodes) {
        parts.extend(room.take(row, limits.batch).map(|tokens| Part::Row { wish, tokens }));
    }
    let mut left_for_long = limits.chunk;
    for (wish, row) in numbered().filter(|(_, row)| !row.decodes) {
        let is_long = row.left > limits.chunk;
        let most = if is_long { left_for_long } else { limits.batch };
        if let Some(tokens) = room.take(row, most) {
            left_for_long -= if is_long { tokens } else { 0 };
            parts.push(Part::Row { wish, tokens });
        }
    }
    parts.sort_unstable_by_key(|part| sequence(part, wishes));
    let fillers = fillers(&parts, wishes, can_fill);
    if !fillers.is_empty() && fillers.len() <= room.tokens {
        parts.extend(fillers.into_iter().map(Part::Filler));
        parts.sort_unstable_by_key(|part| sequence(part, wishes));
    }
    parts
}

/// What is left of a step.
struct Room {
    tokens: usize,
    outputs: usize,
}

impl Room {
    /// Takes up to `most` tokens of a row, if any fit.
    fn take(&mut self, row: &Wish, most: usize) -> Option<usize> {
        let silent = row.left.saturating_sub(row.keep);
        let tokens = row.left.min(most).min(self.tokens).min(silent + self.outputs);
        self.tokens -= tokens;
        self.outputs -= tokens.saturating_sub(silent);
        (tokens > 0).then_some(tokens)
    }
}

fn sequence(part: &Part, wishes: &[Wish]) -> SequenceId {
    match part {
        Part::Row { wish, .. } => wishes[*wish].sequence,
        Part::Filler(sequence) => *sequence,
    }
}

/// The idle sequences in the small holes between rows that decode. Prompts are computed in a go of their
/// own in any case.
fn fillers(
    parts: &[Part],
    wishes: &[Wish],
    can_fill: impl Fn(SequenceId) -> bool,
) -> Vec<SequenceId> {
    let decodes = |part: &&Part| matches!(part, Part::Row { wish, .. } if wishes[*wish].decodes);
    let has = |wanted| parts.binary_search_by_key(&wanted, |part| sequence(part, wishes)).is_ok();
    let mut fillers = Vec::new();
    let mut last = None;
    for here in parts.iter().filter(decodes).map(|part| sequence(part, wishes)) {
        if let Some(last) = last.replace(here) {
            let hole = (last + 1..here).filter(|between| !has(*between));
            if hole.clone().count() <= WIDEST_HOLE && hole.clone().all(&can_fill) {
                fillers.extend(hole);
            }
        }
    }
    fillers
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { batch: 512, chunk: 128, outputs: 64 };

    fn decode(sequence: SequenceId) -> Wish {
        Wish { sequence, left: 1, keep: 1, decodes: true }
    }

    fn prompt(sequence: SequenceId, left: usize) -> Wish {
        Wish { sequence, left, keep: 1, decodes: false }
    }

    fn row(wish: usize, tokens: usize) -> Part {
        Part::Row { wish, tokens }
    }

    #[test]
    fn parts_are_in_the_order_of_their_sequences() {
        let wishes = [decode(2), decode(0), prompt(1, 9), decode(3)];
        let parts = compose(&wishes, &LIMITS, |_| false);
        assert_eq!(parts, [row(1, 1), row(2, 9), row(0, 1), row(3, 1)]);
    }

    #[test]
    fn a_prompt_alone_has_the_whole_step_and_beside_decodes_a_chunk() {
        let alone = Limits { chunk: LIMITS.batch, ..LIMITS };
        assert_eq!(compose(&[prompt(0, 4000)], &alone, |_| false), [row(0, 512)]);
        assert_eq!(compose(&[prompt(0, 4000)], &LIMITS, |_| false), [row(0, 128)], "others wait");
        let wishes = [prompt(0, 100), prompt(1, 4000), prompt(3, 5), prompt(4, 999), decode(2)];
        let parts = compose(&wishes, &LIMITS, |_| false);
        assert_eq!(
            parts,
            [row(0, 100), row(1, 128), row(4, 1), row(2, 5)],
            "one long one at a time"
        );
    }

    #[test]
    fn a_step_holds_no_more_than_it_may() {
        let limits = Limits { batch: 3, chunk: 3, outputs: 64 };
        let wishes = [decode(0), decode(1), decode(2), decode(3), prompt(4, 9)];
        let parts = compose(&wishes, &limits, |_| true);
        assert_eq!(parts, [row(0, 1), row(1, 1), row(2, 1)]);
    }

    #[test]
    fn outputs_are_bounded_and_the_rest_waits() {
        // Of ten tokens the last eight have outputs.
        let scored = Wish { sequence: 0, left: 10, keep: 8, decodes: false };
        let limits = Limits { outputs: 5, ..LIMITS };
        assert_eq!(compose(&[scored], &limits, |_| false), [row(0, 7)]);
        let rest = Wish { left: 3, ..scored };
        assert_eq!(compose(&[rest, prompt(1, 20)], &limits, |_| false), [row(0, 3), row(1, 20)]);
    }

    #[test]
    fn small_holes_between_decodes_are_filled() {
        let wishes = [decode(0), decode(3), decode(4), decode(8)];
        let parts = compose(&wishes, &LIMITS, |_| true);
        let filled = [row(0, 1), Part::Filler(1), Part::Filler(2), row(1, 1), row(2, 1), row(3, 1)];
        assert_eq!(parts, filled, "three in a row are too many");
        assert_eq!(compose(&wishes[..2], &LIMITS, |sequence| sequence != 2).len(), 2);
    }

    #[test]
    fn prompts_leave_no_holes_to_fill() {
        let parts = compose(&[decode(0), prompt(2, 9), decode(1)], &LIMITS, |_| true);
        assert_eq!(parts, [row(0, 1), row(2, 1), row(1, 9)]);
        let parts = compose(&[decode(0), prompt(1, 9), decode(3)], &LIMITS, |_| true);
        assert_eq!(parts, [row(0, 1), row(1, 9), Part::Filler(2), row(2, 1)]);
    }
}
