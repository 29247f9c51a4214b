//! The names of the tensors of the causal-LM convention over `wasi:nn`.
//!
//! B is the number of rows, S the most new tokens of a row in this call, P the tokens a row already
//! holds, K the positions whose logits are asked for, V the vocabulary, R the rows to come. The
//! first four inputs have the names and meanings of the stateful models that optimum-intel exports
//! for OpenVINO.

/// In, I64 `[B, S]`: the next tokens of each row.
pub const INPUT_IDS: &str = "input_ids";
/// In, I64 `[B, P+S]` (or `[B, S]`): 1 real, 0 padding; short rows are padded on the left.
pub const ATTENTION_MASK: &str = "attention_mask";
/// In, I64 `[B, S]`: the position of each new token; below the row's length it rewinds the row.
pub const POSITION_IDS: &str = "position_ids";
/// In, I32 `[B]`: row b continues what row `beam_idx[b]` was.
pub const BEAM_IDX: &str = "beam_idx";
/// In, I64 `[1]`: logits of the last K positions only; absent: of all S.
pub const LOGITS_TO_KEEP: &str = "logits_to_keep";
/// In, I64 `[R]`, before anything else: the final length of each row to come. May come alone.
pub const RESERVE: &str = "reserve";
/// Out, FP32 `[B, K, V]`: raw logits.
pub const LOGITS: &str = "logits";
