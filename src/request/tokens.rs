//! The bodies of `POST /tokenize` and `POST /detokenize`, in vLLM's shape.

use spinfer_protocol::ApiError;

use super::{Fields, required};
use crate::tokenizer::TokenId;

/// Text whose tokens are asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenizeRequest {
    /// The id or alias of a model; none for the server's default.
    pub model: Option<String>,
    /// The text.
    pub text: String,
    /// Whether to put before and after it what the model's vocabulary wants there.
    pub add_special_tokens: bool,
}

impl TokenizeRequest {
    /// Reads a body.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let fields = Fields::read(body, &["model", "prompt", "add_special_tokens"])?;
        Ok(Self {
            model: fields.string("model")?.map(str::to_owned),
            text: fields.string("prompt")?.ok_or_else(|| required("prompt"))?.to_owned(),
            add_special_tokens: fields.boolean("add_special_tokens")?.unwrap_or(true),
        })
    }
}

/// Tokens whose text is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DetokenizeRequest {
    /// The id or alias of a model; none for the server's default.
    pub model: Option<String>,
    /// The tokens. Whether the vocabulary has them is still open.
    pub tokens: Vec<TokenId>,
}

impl DetokenizeRequest {
    /// Reads a body.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let fields = Fields::read(body, &["model", "tokens"])?;
        let tokens = fields.token_ids("tokens")?.ok_or_else(|| required("tokens"))?;
        Ok(Self { model: fields.string("model")?.map(str::to_owned), tokens })
    }
}
