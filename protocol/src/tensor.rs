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
/// In, I64 `[B, S]`: the position of each new token; below the row's length it rewinds the row. To 0
/// every backend can: the row begins anew. A row without new tokens has no position, so it is left as it
/// is.
pub const POSITION_IDS: &str = "position_ids";
/// In, I32 `[B]`: row b continues what row `beam_idx[b]` was.
pub const BEAM_IDX: &str = "beam_idx";
/// In, I64 `[1]`: logits of the last K positions only; absent: of all S.
pub const LOGITS_TO_KEEP: &str = "logits_to_keep";
/// In, I64 `[R]`, before anything else: the final length of each row to come. May come alone.
pub const RESERVE: &str = "reserve";
/// Out, FP32 `[B, K, V]`: raw logits.
pub const LOGITS: &str = "logits";
/// In, I32 `[1]`, with [`GATHER_IDS`] instead of [`LOGITS`]: how many of the most likely tokens are
/// wanted of each of the K positions, at most [`MOST_TOP_K`].
pub const TOP_K: &str = "top_k";
/// In, I32 `[B, K]`: a token of each position whose logit is wanted.
pub const GATHER_IDS: &str = "gather_ids";
/// Out, I32 `[B, K, k]`: the most likely tokens, the most likely first; of equal ones the lower id.
/// -1 where a row has fewer logits that are numbers.
pub const TOP_IDS: &str = "top_ids";
/// Out, FP32 `[B, K, k]`: their logits; negative infinity beside -1.
pub const TOP_LOGITS: &str = "top_logits";
/// Out, FP32 `[B, K]`: the logit of each token of [`GATHER_IDS`].
pub const GATHERED: &str = "gathered";
/// Out, FP32 `[B, K]`, with the other reductions: the logarithm of the sum of the exponentials of the
/// whole row; NaN when none of its logits is a number. In, I32 `[1]`: 0 leaves it out, since it costs
/// more than the others together.
pub const LOGSUMEXP: &str = "logsumexp";

/// The most tokens that [`TOP_K`] may ask for.
pub const MOST_TOP_K: u32 = 1024;

/// In, FP32 `[1]`, above 0, with [`TOP_K`]: for whoever draws from the likeliest tokens and needs the
/// others now and then. [`WEIGHT_SUM`] and [`LOGITS`] come beside the reductions; what of them isn't read
/// is not copied.
pub const SCALE: &str = "scale";
/// Out, FP64 `[B, K]`, with [`SCALE`]: the sum over the whole row of `exp((logit - highest) * scale)`.
pub const WEIGHT_SUM: &str = "weight_sum";

/// In, U8 `[n]`, in the first call with tokens: these rows may begin with what earlier contexts of this
/// component have computed under the same salt, and later ones with what these rows hold. Absent: nothing
/// is shared. Positions whose outputs are asked for are computed in any case.
pub const CACHE_SALT: &str = "cache_salt";
/// Out, I64 `[B]`, with [`CACHE_SALT`]: how many of each row's tokens were there already.
pub const CACHED_TOKENS: &str = "cached_tokens";

/// All inputs beyond [`INPUT_IDS`].
pub const OPTIONAL_INPUTS: [&str; 10] = [
    ATTENTION_MASK,
    POSITION_IDS,
    BEAM_IDX,
    LOGITS_TO_KEEP,
    RESERVE,
    TOP_K,
    GATHER_IDS,
    LOGSUMEXP,
    SCALE,
    CACHE_SALT,
];
