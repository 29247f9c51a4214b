//! Fields that are checked as the reference says, but not carried out yet: a request that sets one
//! to anything with an effect is refused, so that no answer silently lacks what was asked for.

use serde_json::Value;
use spinfer_protocol::ApiError;

use super::body::Fields;
use super::fields::mismatch;
use super::{CompletionRequest, Prompt};

/// The refusal of a valid field that isn't carried out yet.
pub fn unsupported(name: &str) -> ApiError {
    ApiError::invalid(name, format!("`{name}` is not supported yet."))
}

/// Refuses what isn't carried out yet, and what will never be valid.
pub fn refuse(fields: &Fields, request: &CompletionRequest) -> Result<(), ApiError> {
    match request.prompts.as_slice() {
        [Prompt::Text(_)] => {}
        [Prompt::Tokens(_)] => {
            return Err(ApiError::invalid(
                "prompt",
                "Token ids as `prompt` are not supported yet.",
            ));
        }
        _ => {
            return Err(ApiError::invalid("prompt", "Several prompts are not supported yet."));
        }
    }
    choices(fields)?;
    scoring(fields)?;
    penalties(fields)?;
    extensions(fields)
}

/// Refuses the field unless its value has no effect.
fn only<T: PartialEq>(name: &'static str, value: Option<T>, neutral: &[T]) -> Result<(), ApiError> {
    match value {
        Some(value) if !neutral.contains(&value) => Err(unsupported(name)),
        _ => Ok(()),
    }
}

fn choices(fields: &Fields) -> Result<(), ApiError> {
    let n = fields.integer("n", 1, 128)?;
    let best_of = fields.integer("best_of", 1, 20)?;
    if let (n, Some(best_of)) = (n.unwrap_or(1), best_of)
        && best_of < n
    {
        let message = format!("`best_of` must be at least `n`, which is {n}, not {best_of}.");
        return Err(ApiError::invalid("best_of", message));
    }
    only("n", n, &[1])?;
    only("best_of", best_of, &[1])
}

fn scoring(fields: &Fields) -> Result<(), ApiError> {
    only("echo", fields.boolean("echo")?, &[false])?;
    let logprobs =
        fields.typed("logprobs", "an integer from 0 to 20, or a boolean", |value| match value {
            Value::Bool(on) => Some(*on),
            other => other.as_i64().filter(|count| (0..=20).contains(count)).map(|_| true),
        })?;
    only("logprobs", logprobs, &[false])?;
    only("suffix", fields.string("suffix")?, &[""])
}

fn penalties(fields: &Fields) -> Result<(), ApiError> {
    only("frequency_penalty", fields.number("frequency_penalty", -2.0, 2.0)?, &[0.0])?;
    only("presence_penalty", fields.number("presence_penalty", -2.0, 2.0)?, &[0.0])?;
    let bias = fields.typed("logit_bias", "an object", Value::as_object)?;
    only("logit_bias", bias.map(serde_json::Map::len), &[0])
}

fn extensions(fields: &Fields) -> Result<(), ApiError> {
    only("top_k", fields.integer("top_k", -1, i64::MAX)?, &[-1, 0])?;
    only("min_p", fields.number("min_p", 0.0, 1.0)?, &[0.0])?;
    let repetition = fields.typed("repetition_penalty", "a number above 0", |value| {
        value.as_f64().filter(|penalty| *penalty > 0.0)
    })?;
    only("repetition_penalty", repetition, &[1.0])?;
    only("stop_token_ids", stop_token_ids(fields)?, &[0])?;
    only("ignore_eos", fields.boolean("ignore_eos")?, &[false])?;
    only("min_tokens", fields.integer("min_tokens", 0, i64::MAX)?, &[0])?;
    only("return_token_ids", fields.boolean("return_token_ids")?, &[false])
}

fn stop_token_ids(fields: &Fields) -> Result<Option<usize>, ApiError> {
    let ids = fields.typed("stop_token_ids", "an array of token ids", Value::as_array)?;
    for (at, id) in ids.into_iter().flatten().enumerate() {
        if id.as_u64().is_none() {
            return Err(mismatch(&format!("stop_token_ids[{at}]"), "a token id", id));
        }
    }
    Ok(ids.map(Vec::len))
}
