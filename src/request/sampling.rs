//! The fields that say how tokens are chosen.

use serde_json::Value;
use spinfer_protocol::ApiError;

use super::{Fields, mismatch};
use crate::sampling::{Adjustments, SamplingParams, Temperature, TopP};
use crate::tokenizer::TokenId;

/// What `repetition_penalty` may be.
const PENALTY: &str = "a number above 0 that a 32-bit float can hold";

/// Reads them all. Whether the vocabulary has the biased tokens is still open.
pub fn read(fields: &Fields) -> Result<SamplingParams, ApiError> {
    let temperature = fields.typed("temperature", Temperature::EXPECTED, |value| {
        value.as_f64().and_then(Temperature::new)
    })?;
    let top_p =
        fields.typed("top_p", TopP::EXPECTED, |value| value.as_f64().and_then(TopP::new))?;
    let top_k = fields.integer("top_k", -1, i64::MAX)?.filter(|k| *k > 0);
    let min_p = fields.number("min_p", 0.0, 1.0)?;
    Ok(SamplingParams {
        temperature: temperature.unwrap_or_default(),
        top_p: top_p.unwrap_or_default(),
        top_k: top_k.map(|k| usize::try_from(k).unwrap_or(usize::MAX)),
        min_p: min_p.unwrap_or(0.0) as f32,
        adjustments: adjustments(fields)?,
    })
}

fn adjustments(fields: &Fields) -> Result<Adjustments, ApiError> {
    let penalty = |name| Ok(fields.number(name, -2.0, 2.0)?.unwrap_or(0.0) as f32);
    let repetition = fields.typed("repetition_penalty", PENALTY, |value| {
        value
            .as_f64()
            .map(|penalty| penalty as f32)
            .filter(|penalty| *penalty > 0.0 && penalty.is_finite())
    })?;
    Ok(Adjustments {
        bias: logit_bias(fields)?,
        frequency_penalty: penalty("frequency_penalty")?,
        presence_penalty: penalty("presence_penalty")?,
        repetition_penalty: repetition.unwrap_or(1.0),
    })
}

fn logit_bias(fields: &Fields) -> Result<Vec<(TokenId, f32)>, ApiError> {
    let bias = fields.typed("logit_bias", "an object", Value::as_object)?;
    let Some(bias) = bias else {
        return Ok(Vec::new());
    };
    let mut read = bias
        .iter()
        .map(|(key, value)| {
            let param = format!("logit_bias.{key}");
            // `parse` alone would take a sign too.
            let digits = key.bytes().all(|byte| byte.is_ascii_digit());
            let token = key.parse::<TokenId>().ok().filter(|_| digits).ok_or_else(|| {
                let message = format!("The keys of `logit_bias` must be token ids, not {key:?}.");
                ApiError::invalid(&*param, message)
            })?;
            let bias = value.as_f64().filter(|bias| (-100.0..=100.0).contains(bias));
            let bias = bias.ok_or_else(|| mismatch(&param, "a number from -100 to 100", value))?;
            Ok((token, bias as f32))
        })
        .collect::<Result<Vec<_>, ApiError>>()?;
    read.sort_unstable_by_key(|(token, _)| *token);
    if let Some(pair) = read.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        let token = pair[0].0;
        let message = format!("`logit_bias` has the token {token} more than once.");
        return Err(ApiError::invalid(format!("logit_bias.{token}"), message));
    }
    Ok(read)
}
