//! The completion object, whole and in chunks.

use serde::Serialize;
use spinfer_protocol::Backend;

use super::logprobs::Logprobs;
use super::to_json;
use crate::generation::{ClientGone, Delta, FinishReason, Plan, Sink, Usage};
use crate::models::Model;
use crate::request::Choices;
use crate::tokenizer::TokenId;

/// What all objects of one answer have in common.
#[derive(Debug, Clone)]
pub struct Head {
    /// `cmpl-…`, unlike any other.
    pub id: String,
    /// Unix seconds.
    pub created: u64,
    /// The model, as the request named it.
    pub name: String,
    /// What computes.
    pub model: &'static Model,
    /// Whether choices have log-probabilities.
    pub logprobs: bool,
    /// Whether choices have token ids.
    pub token_ids: bool,
}

impl Head {
    /// The object with these choices. `usage` is left out, null, or given; `obfuscation` is noise that
    /// hides how long a chunk is.
    pub(super) fn object<'a>(
        &'a self,
        choices: &'a [Choice<'a>],
        usage: Option<Option<Usage>>,
        obfuscation: Option<String>,
    ) -> String {
        to_json(&Object {
            id: &self.id,
            object: "text_completion",
            created: self.created,
            model: &self.name,
            system_fingerprint: self.fingerprint(),
            choices,
            usage: usage.map(|usage| usage.map(UsageObject::from)),
            obfuscation,
        })
    }

    /// A choice, or what is new of it; a chunk's is without log-probabilities when no token is new.
    pub(super) fn choice<'a>(&'a self, part: &'a Delta, is_chunk: bool) -> Choice<'a> {
        let pieces = self.model.tokenizer.pieces();
        let logprobs = Logprobs::new(&part.tokens, pieces);
        let whole = || (!is_chunk).then(Logprobs::default);
        let generated = || part.tokens.iter().filter(|token| token.is_generated);
        Choice {
            index: part.index,
            text: &part.text,
            logprobs: if self.logprobs { logprobs.or_else(whole) } else { None },
            finish_reason: part.finish,
            token_ids: self.token_ids.then(|| generated().map(|token| token.id).collect()),
            prompt_token_ids: self.token_ids.then_some(part.prompt_ids.as_deref()),
        }
    }

    /// Equal for answers that were made the same way: by this version and that backend.
    fn fingerprint(&self) -> &'static str {
        match self.model.card.backend {
            Backend::Ggml => concat!("fp_spinfer_", env!("CARGO_PKG_VERSION"), "_ggml"),
            Backend::Openvino => concat!("fp_spinfer_", env!("CARGO_PKG_VERSION"), "_openvino"),
        }
    }
}

#[derive(Serialize)]
struct Object<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'static str,
    choices: &'a [Choice<'a>],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<UsageObject>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    obfuscation: Option<String>,
}

/// One choice, or what is new of it.
#[derive(Debug, Serialize)]
pub(super) struct Choice<'a> {
    index: usize,
    text: &'a str,
    logprobs: Option<Logprobs<'a>>,
    finish_reason: Option<FinishReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<TokenId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Option<&'a [TokenId]>>,
}

#[derive(Serialize)]
struct UsageObject {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_tokens_details: Option<PromptTokensDetails>,
}

#[derive(Serialize)]
struct PromptTokensDetails {
    cached_tokens: usize,
}

impl From<Usage> for UsageObject {
    fn from(usage: Usage) -> Self {
        Self {
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.completion_tokens,
            total_tokens: usage.prompt_tokens + usage.completion_tokens,
            prompt_tokens_details: usage
                .cached_tokens
                .map(|cached_tokens| PromptTokensDetails { cached_tokens }),
        }
    }
}

/// Joins deltas into whole candidates.
#[derive(Debug)]
pub struct Collector {
    choices: Choices,
    parts: Vec<Delta>,
}

impl Collector {
    /// A collector of all candidates of a plan.
    pub fn new(plan: &Plan) -> Self {
        Self { choices: plan.choices, parts: Vec::new() }
    }

    /// The whole answer's body.
    pub fn into_body(mut self, head: &Head, usage: Usage) -> String {
        if self.choices.are_ranked() {
            self.keep_the_best();
        }
        let choices = self.parts.iter().map(|part| head.choice(part, false)).collect::<Vec<_>>();
        head.object(&choices, Some(Some(usage)), None)
    }

    /// Keeps of each prompt's candidates those whose tokens are likeliest on average, the likeliest
    /// first, and numbers them anew.
    fn keep_the_best(&mut self) {
        let mut kept = Vec::new();
        for candidates in self.parts.chunks_mut(self.choices.candidates) {
            candidates.sort_by(|a, b| b.mean_logprob.total_cmp(&a.mean_logprob));
            kept.extend(candidates.iter_mut().take(self.choices.n).map(std::mem::take));
        }
        for (index, part) in kept.iter_mut().enumerate() {
            part.index = index;
        }
        self.parts = kept;
    }
}

impl Sink for Collector {
    async fn send(&mut self, delta: Delta) -> Result<(), ClientGone> {
        while self.parts.len() <= delta.index {
            self.parts.push(Delta { index: self.parts.len(), ..Delta::default() });
        }
        self.parts[delta.index].append(delta);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::generation::Token;
    use crate::testing::{self, block_on, byte};

    fn head() -> Head {
        Head {
            id: "cmpl-1".into(),
            created: 7,
            name: "m".into(),
            model: Box::leak(Box::new(testing::model())),
            logprobs: false,
            token_ids: false,
        }
    }

    fn delta(index: usize, text: &str, finish: Option<FinishReason>) -> Delta {
        Delta { index, text: text.to_owned(), finish, ..Delta::default() }
    }

    fn body(head: &Head, candidates: usize, n: usize, deltas: Vec<Delta>) -> Value {
        let choices = Choices { n, candidates };
        let mut collector = Collector { choices, parts: Vec::new() };
        for delta in deltas {
            block_on(collector.send(delta)).unwrap();
        }
        let usage = Usage { prompt_tokens: 3, completion_tokens: 4, cached_tokens: None };
        serde_json::from_str(&collector.into_body(head, usage)).unwrap()
    }

    #[test]
    fn deltas_are_joined_in_the_order_of_choices() {
        let deltas = vec![
            delta(1, "c", None),
            delta(0, "a", None),
            delta(1, "", Some(FinishReason::Stop)),
            delta(0, "b", Some(FinishReason::Length)),
        ];
        let fingerprint = concat!("fp_spinfer_", env!("CARGO_PKG_VERSION"), "_ggml");
        assert_eq!(
            body(&head(), 2, 2, deltas),
            json!({
                "id": "cmpl-1", "object": "text_completion", "created": 7, "model": "m",
                "system_fingerprint": fingerprint,
                "choices": [
                    {"index": 0, "text": "ab", "logprobs": null, "finish_reason": "length"},
                    {"index": 1, "text": "c", "logprobs": null, "finish_reason": "stop"},
                ],
                "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
            })
        );
    }

    #[test]
    fn the_best_of_each_prompt_come_first_and_alone() {
        let end = Some(FinishReason::Stop);
        let deltas = [-3.0, -1.0, -2.0, -0.5, -0.5, -9.0]
            .into_iter()
            .enumerate()
            .map(|(index, mean_logprob)| Delta {
                mean_logprob,
                ..delta(index, &index.to_string(), end)
            })
            .collect();
        let body = body(&head(), 3, 2, deltas);
        let choices = body["choices"].as_array().unwrap();
        let found = choices.iter().map(|choice| (choice["index"].clone(), choice["text"].clone()));
        let expected = [(0, "1"), (1, "2"), (2, "3"), (3, "4")];
        assert!(found.eq(expected.map(|(index, text)| (json!(index), json!(text)))));
    }

    #[test]
    fn what_was_asked_for_is_never_left_out() {
        let head = Head { logprobs: true, token_ids: true, ..head() };
        let token = Token { id: byte(b'x'), is_generated: true, score: None };
        let deltas = vec![
            Delta { prompt_ids: Some([5, 6].into()), tokens: vec![token], ..delta(0, "x", None) },
            delta(0, "", Some(FinishReason::Stop)),
        ];
        let choice = &body(&head, 1, 1, deltas)["choices"][0];
        assert_eq!(choice["token_ids"], json!([byte(b'x')]));
        assert_eq!(choice["prompt_token_ids"], json!([5, 6]));
        assert_eq!(choice["logprobs"]["tokens"], json!([]));
    }
}
