//! Typed reading of fields. Every refusal names the field, what it takes and what was found.

use serde_json::Value;
use spinfer_protocol::ApiError;

use super::body::Fields;
use crate::tokenizer::TokenId;

impl Fields {
    /// A string field.
    pub fn string(&self, name: &'static str) -> Result<Option<&str>, ApiError> {
        self.typed(name, "a string", Value::as_str)
    }

    /// A boolean field.
    pub fn boolean(&self, name: &'static str) -> Result<Option<bool>, ApiError> {
        self.typed(name, "true or false", Value::as_bool)
    }

    /// An integer field within limits, both included.
    pub fn integer(&self, name: &'static str, min: i64, max: i64) -> Result<Option<i64>, ApiError> {
        let expected = match max {
            i64::MAX if min != i64::MIN => format!("an integer of at least {min}"),
            _ => format!("an integer from {min} to {max}"),
        };
        self.typed(name, &expected, |value| {
            value.as_i64().filter(|number| (min..=max).contains(number))
        })
    }

    /// A number field within limits, both included.
    pub fn number(&self, name: &'static str, min: f64, max: f64) -> Result<Option<f64>, ApiError> {
        self.typed(name, &format!("a number from {min} to {max}"), |value| {
            value.as_f64().filter(|number| (min..=max).contains(number))
        })
    }

    /// A field of token ids. Whether a vocabulary has them is left open.
    pub fn token_ids(&self, name: &'static str) -> Result<Option<Vec<TokenId>>, ApiError> {
        let Some(ids) = self.typed(name, "an array of token ids", Value::as_array)? else {
            return Ok(None);
        };
        let ids = ids.iter().enumerate().map(|(at, id)| {
            let token = id.as_u64().and_then(|id| TokenId::try_from(id).ok());
            token.ok_or_else(|| mismatch(&format!("{name}[{at}]"), "a token id", id))
        });
        ids.collect::<Result<_, _>>().map(Some)
    }

    /// A field that `read` understands; `expected` says what that is.
    pub fn typed<'a, T>(
        &'a self,
        name: &'static str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        match read(value) {
            Some(read) => Ok(Some(read)),
            None => Err(mismatch(name, expected, value)),
        }
    }
}

/// The error for a field that holds something else than it should.
pub fn mismatch(param: &str, expected: &str, found: &Value) -> ApiError {
    ApiError::invalid(param, format!("`{param}` must be {expected}, not {}.", describe(found)))
}

/// A value as it is written in JSON, or its kind where that would be long.
pub fn describe(value: &Value) -> String {
    const LONGEST: usize = 40;
    match value {
        Value::Array(_) => "an array".into(),
        Value::Object(_) => "an object".into(),
        Value::String(text) if text.len() > LONGEST => "a longer string".into(),
        other => other.to_string(),
    }
}
