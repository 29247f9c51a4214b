//! The bodies of `POST /tokenize`, `POST /detokenize` and `GET /tokenizer_info`, in vLLM's shapes.

use serde::Serialize;
use serde_json::json;

use super::to_json;
use crate::models::Model;
use crate::tokenizer::TokenId;

#[derive(Serialize)]
struct Tokenized<'a> {
    count: usize,
    max_model_len: u32,
    tokens: &'a [TokenId],
}

/// The tokens of a text.
pub fn tokenized(tokens: &[TokenId], model: &Model) -> String {
    to_json(&Tokenized { count: tokens.len(), max_model_len: model.card.context, tokens })
}

/// The text of tokens. What isn't UTF-8 becomes U+FFFD.
pub fn detokenized(tokens: &[TokenId], model: &Model) -> String {
    let text = model.tokenizer.decode(tokens);
    to_json(&json!({"prompt": String::from_utf8_lossy(&text)}))
}

/// What clients that make prompts themselves must know.
pub fn tokenizer_info(model: &Model) -> String {
    let card = &model.card;
    let text = |token: Option<TokenId>| {
        token.map(|token| String::from_utf8_lossy(model.tokenizer.pieces().bytes(token)))
    };
    to_json(&json!({
        "eos_token": text(card.eos),
        "bos_token": text(card.bos),
        "pad_token": text(card.pad),
        "chat_template": card.chat_template,
    }))
}
