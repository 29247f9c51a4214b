//! From the bytes of a body to a request that needs no more checks of its own.
//!
//! What can't be known here is left to the plan ([`crate::generation::Plan`]): whether the model
//! exists, whether its vocabulary has the ids, and whether it all fits in its context.

mod body;
mod choices;
mod fields;
mod prompt;
mod sampling;
mod stopping;
mod tokens;

use serde_json::Value;
use spinfer_protocol::ApiError;

use body::Fields;
pub use choices::Choices;
use fields::mismatch;
pub use prompt::{MAX_PROMPTS, Prompt, Prompts};
pub use stopping::{MAX_STOPS, Stopping};
pub use tokens::{DetokenizeRequest, TokenizeRequest};

use crate::sampling::SamplingParams;

/// `max_tokens` where the request has none.
pub const DEFAULT_MAX_TOKENS: u64 = 16;
/// The most alternatives that `logprobs` may ask for.
pub const MAX_LOGPROBS: usize = 20;

/// The fields that are read, besides `prompt`. Others are ignored.
pub(crate) const KNOWN: &[&str] = &[
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
    /// What is to be completed.
    pub prompts: Prompts,
    /// What follows the gap that is to be filled; not empty.
    pub suffix: Option<String>,
    /// The most tokens to generate, where the request says so.
    pub max_tokens: Option<u64>,
    /// Under which name it says so.
    pub max_tokens_field: &'static str,
    /// How many completions of each prompt.
    pub choices: Choices,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// The generator's seed, where the request has one.
    pub seed: Option<i64>,
    /// What ends a completion before `max_tokens`.
    pub stopping: Stopping,
    /// Whether the answer's text begins with the prompt.
    pub echo: bool,
    /// How many alternatives are listed beside each token's log-probability; `None`: there are no
    /// log-probabilities.
    pub logprobs: Option<usize>,
    /// Whether the answer has token ids.
    pub return_token_ids: bool,
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
    /// Random padding in each chunk, so that its size doesn't tell what is in it.
    pub include_obfuscation: bool,
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
        let suffix = fields.string("suffix")?.filter(|suffix| !suffix.is_empty());
        let (max_tokens, max_tokens_field) = max_tokens(&fields)?;
        let request = Self {
            model,
            prompts,
            suffix: suffix.map(str::to_owned),
            max_tokens,
            max_tokens_field,
            choices: Choices::read(&fields)?,
            sampling: sampling::read(&fields)?,
            seed: fields.integer("seed", i64::MIN, i64::MAX)?,
            stopping: Stopping::read(&fields)?,
            echo: fields.boolean("echo")?.unwrap_or(false),
            logprobs: logprobs(&fields)?,
            return_token_ids: fields.boolean("return_token_ids")?.unwrap_or(false),
            stream: stream(&fields)?,
            user: fields.string("user")?.map(str::to_owned),
        };
        request.check_together()?;
        Ok(request)
    }

    /// The rules between fields that are each in range.
    fn check_together(&self) -> Result<(), ApiError> {
        if self.stream.is_some() && self.choices.are_ranked() {
            let message = "`best_of` above `n` can't be streamed: the best are known at the end.";
            return Err(ApiError::invalid("best_of", message));
        }
        if self.suffix.is_some() && self.echo && self.logprobs.is_some() {
            let message = "`suffix` can't go with `echo` and `logprobs`: the prompt is in two parts, \
                which the model reads in another order.";
            return Err(ApiError::invalid("suffix", message));
        }
        let min_tokens = self.stopping.min_tokens;
        let max_tokens = self.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS);
        if min_tokens > max_tokens {
            let message = format!(
                "`min_tokens` must be at most `max_tokens`, which is {max_tokens}, not {min_tokens}."
            );
            return Err(ApiError::invalid("min_tokens", message));
        }
        Ok(())
    }
}

fn required(name: &'static str) -> ApiError {
    ApiError::invalid(name, format!("`{name}` is required."))
}

/// The limit, and the field that it is from.
fn max_tokens(fields: &Fields) -> Result<(Option<u64>, &'static str), ApiError> {
    let read = |name| Ok(fields.integer(name, 0, i64::MAX)?.map(i64::unsigned_abs));
    let (max_tokens, alias) = (read("max_tokens")?, read("max_completion_tokens")?);
    Ok(match (max_tokens, alias) {
        (None, Some(alias)) => (Some(alias), "max_completion_tokens"),
        (max_tokens, _) => (max_tokens, "max_tokens"),
    })
}

fn logprobs(fields: &Fields) -> Result<Option<usize>, ApiError> {
    let expected = format!("an integer from 0 to {MAX_LOGPROBS}, or a boolean");
    let logprobs = fields.typed("logprobs", &expected, |value| match value {
        Value::Bool(on) => Some(on.then_some(1)),
        other => {
            let count = usize::try_from(other.as_u64()?).ok()?;
            (count <= MAX_LOGPROBS).then_some(Some(count))
        }
    })?;
    Ok(logprobs.flatten())
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
    Ok(Some(StreamOptions {
        include_usage: flag("include_usage")?,
        include_obfuscation: flag("include_obfuscation")?,
    }))
}

#[cfg(test)]
mod tests;
