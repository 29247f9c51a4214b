//! From the bytes of a body to a request that needs no more checks of its own.
//!
//! What can't be known here is left to the plan ([`crate::generation::Plan`]): whether the model
//! exists, whether its vocabulary has the ids, and whether it all fits in its context.

mod body;
mod fields;
mod pending;
mod prompt;

use serde_json::Value;
use spinfer_protocol::ApiError;

use body::Fields;
use fields::mismatch;
pub use prompt::{MAX_PROMPTS, Prompt};

use crate::sampling::{SamplingParams, Temperature, TopP};

/// The most stop strings that one request may hold.
pub const MAX_STOPS: usize = 64;
/// `max_tokens` where the request has none.
pub const DEFAULT_MAX_TOKENS: u64 = 16;

/// The fields that are read, besides `prompt`. Others are ignored.
const KNOWN: &[&str] = &[
    "model",
    "best_of",
    "echo",
    "frequency_penalty",
    "ignore_eos",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "max_tokens",
    "min_p",
    "min_tokens",
    "n",
    "presence_penalty",
    "repetition_penalty",
    "return_token_ids",
    "seed",
    "stop",
    "stop_token_ids",
    "stream",
    "stream_options",
    "suffix",
    "temperature",
    "top_k",
    "top_p",
    "user",
];

/// A valid request for completions.
#[derive(Debug, Clone, PartialEq)]
pub struct CompletionRequest {
    /// The id or alias of a model.
    pub model: String,
    /// At least one.
    pub prompts: Vec<Prompt>,
    /// The most tokens to generate, where the request says so.
    pub max_tokens: Option<u64>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// The generator's seed, where the request has one.
    pub seed: Option<i64>,
    /// Texts that end a completion; none is empty.
    pub stop: Vec<String>,
    /// How to stream; `None` asks for one whole answer.
    pub stream: Option<StreamOptions>,
    /// Whom the request is for, by the client's word.
    pub user: Option<String>,
}

/// What a stream is to carry besides its chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamOptions {
    /// A last chunk with the usage and no choices.
    pub include_usage: bool,
}

impl CompletionRequest {
    /// Reads a body.
    ///
    /// # Errors
    ///
    /// 400 that names the field at fault, unless the body as a whole is.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::read(body, KNOWN)?;
        let model = fields.string("model")?.ok_or_else(|| required("model"))?.to_owned();
        let prompts = fields.prompt.take().ok_or_else(|| required("prompt"))?.0?;
        let request = Self {
            model,
            prompts,
            max_tokens: max_tokens(&fields)?,
            sampling: sampling(&fields)?,
            seed: fields.integer("seed", i64::MIN, i64::MAX)?,
            stop: stop(&fields)?,
            stream: stream(&fields)?,
            user: fields.string("user")?.map(str::to_owned),
        };
        pending::refuse(&fields, &request)?;
        Ok(request)
    }
}

fn required(name: &'static str) -> ApiError {
    ApiError::invalid(name, format!("`{name}` is required."))
}

fn max_tokens(fields: &Fields) -> Result<Option<u64>, ApiError> {
    let max_tokens = fields.integer("max_tokens", 0, i64::MAX)?;
    let alias = fields.integer("max_completion_tokens", 0, i64::MAX)?;
    Ok(max_tokens.or(alias).map(i64::unsigned_abs))
}

fn sampling(fields: &Fields) -> Result<SamplingParams, ApiError> {
    let temperature = fields.typed("temperature", Temperature::EXPECTED, |value| {
        value.as_f64().and_then(Temperature::new)
    })?;
    let top_p =
        fields.typed("top_p", TopP::EXPECTED, |value| value.as_f64().and_then(TopP::new))?;
    Ok(SamplingParams {
        temperature: temperature.unwrap_or_default(),
        top_p: top_p.unwrap_or_default(),
    })
}

fn stop(fields: &Fields) -> Result<Vec<String>, ApiError> {
    let strings = match fields.get("stop") {
        None => return Ok(Vec::new()),
        Some(Value::String(text)) => vec![text.clone()],
        Some(Value::Array(items)) if items.len() > MAX_STOPS => {
            let message =
                format!("`stop` holds {} strings; the limit is {MAX_STOPS}.", items.len());
            return Err(ApiError::invalid("stop", message));
        }
        Some(Value::Array(items)) => items
            .iter()
            .enumerate()
            .map(|(at, item)| match item {
                Value::String(text) => Ok(text.clone()),
                other => Err(mismatch(&format!("stop[{at}]"), "a string", other)),
            })
            .collect::<Result<_, _>>()?,
        Some(other) => return Err(mismatch("stop", "a string or an array of strings", other)),
    };
    if strings.iter().any(String::is_empty) {
        return Err(ApiError::invalid("stop", "`stop` must not hold an empty string."));
    }
    Ok(strings)
}

fn stream(fields: &Fields) -> Result<Option<StreamOptions>, ApiError> {
    let stream = fields.boolean("stream")?.unwrap_or(false);
    let options = fields.typed("stream_options", "an object", Value::as_object)?;
    let Some(options) = options.filter(|options| !options.is_empty()) else {
        return Ok(stream.then(StreamOptions::default));
    };
    if !stream {
        let message = "`stream_options` is for streams; it needs `stream` to be true.";
        return Err(ApiError::invalid("stream_options", message));
    }
    let flag = |name: &str| match options.get(name) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(other) => Err(mismatch(&format!("stream_options.{name}"), "true or false", other)),
    };
    if flag("include_obfuscation")? {
        return Err(pending::unsupported("stream_options.include_obfuscation"));
    }
    Ok(Some(StreamOptions { include_usage: flag("include_usage")? }))
}

#[cfg(test)]
mod tests;
