//! The fields that say when a completion ends.

use serde_json::Value;
use spinfer_protocol::ApiError;

use super::{Fields, mismatch};
use crate::tokenizer::TokenId;

/// The most stop strings that one request may hold.
pub const MAX_STOPS: usize = 64;
const NOT_EMPTY: &str = "a string that is not empty";
/// The most stop tokens that one request may hold.
const MAX_STOP_TOKENS: usize = 1024;

/// What ends a completion, besides its limit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stopping {
    /// Texts; none is empty.
    pub texts: Vec<String>,
    /// Tokens. Whether the vocabulary has them is still open.
    pub tokens: Vec<TokenId>,
    /// Whether the model's own end is passed over.
    pub ignore_eos: bool,
    /// Nothing ends a completion before it has so many tokens.
    pub min_tokens: u64,
}

impl Stopping {
    pub(super) fn read(fields: &Fields) -> Result<Self, ApiError> {
        let min_tokens = fields.integer("min_tokens", 0, i64::MAX)?.unwrap_or(0);
        Ok(Self {
            texts: texts(fields)?,
            tokens: tokens(fields)?,
            ignore_eos: fields.boolean("ignore_eos")?.unwrap_or(false),
            min_tokens: min_tokens.unsigned_abs(),
        })
    }
}

fn texts(fields: &Fields) -> Result<Vec<String>, ApiError> {
    let texts = match fields.get("stop") {
        None => return Ok(Vec::new()),
        Some(Value::String(text)) if !text.is_empty() => vec![text.clone()],
        Some(empty @ Value::String(_)) => return Err(mismatch("stop", NOT_EMPTY, empty)),
        Some(Value::Array(items)) => {
            limited("stop", "strings", items.len(), MAX_STOPS)?;
            items
                .iter()
                .enumerate()
                .map(|(at, item)| match item {
                    Value::String(text) if !text.is_empty() => Ok(text.clone()),
                    other => Err(mismatch(&format!("stop[{at}]"), NOT_EMPTY, other)),
                })
                .collect::<Result<_, _>>()?
        }
        Some(other) => return Err(mismatch("stop", "a string or an array of strings", other)),
    };
    Ok(texts)
}

fn tokens(fields: &Fields) -> Result<Vec<TokenId>, ApiError> {
    let ids = fields.token_ids("stop_token_ids")?.unwrap_or_default();
    limited("stop_token_ids", "tokens", ids.len(), MAX_STOP_TOKENS)?;
    Ok(ids)
}

fn limited(name: &str, what: &str, found: usize, limit: usize) -> Result<(), ApiError> {
    if found <= limit {
        return Ok(());
    }
    Err(ApiError::invalid(name, format!("`{name}` holds {found} {what}; the limit is {limit}.")))
}
