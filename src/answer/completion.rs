//! The completion object, whole and in chunks.

use serde::Serialize;
use spinfer_protocol::Backend;

use super::to_json;
use crate::generation::{ClientGone, Delta, FinishReason, Sink, Usage};

/// What all objects of one answer have in common.
#[derive(Debug, Clone)]
pub struct Head {
    /// `cmpl-…`, unlike any other.
    pub id: String,
    /// Unix seconds.
    pub created: u64,
    /// The model, as the request named it.
    pub model: String,
    /// What computes.
    pub backend: Backend,
}

impl Head {
    /// The object with these choices. `usage` is left out, null, or given.
    pub(super) fn object(&self, choices: &[Choice<'_>], usage: Option<Option<Usage>>) -> String {
        to_json(&Object {
            id: &self.id,
            object: "text_completion",
            created: self.created,
            model: &self.model,
            system_fingerprint: &self.fingerprint(),
            choices,
            usage: usage.map(|usage| usage.map(UsageObject::from)),
        })
    }

    /// Equal for answers that were made the same way: by this version and that backend.
    fn fingerprint(&self) -> String {
        let backend = match self.backend {
            Backend::Ggml => "ggml",
            Backend::Openvino => "openvino",
        };
        concat!("fp_spinfer_", env!("CARGO_PKG_VERSION"), "_").to_owned() + backend
    }
}

#[derive(Serialize)]
struct Object<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'a str,
    choices: &'a [Choice<'a>],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<UsageObject>>,
}

/// One choice, or what is new of it.
#[derive(Debug, Serialize)]
pub(super) struct Choice<'a> {
    pub index: usize,
    pub text: &'a str,
    pub logprobs: Option<Logprobs>,
    pub finish_reason: Option<FinishReason>,
}

/// The log-probabilities of a choice's tokens, which no request can ask for yet.
#[derive(Debug, Serialize)]
pub(super) enum Logprobs {}

#[derive(Serialize)]
struct UsageObject {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
}

impl From<Usage> for UsageObject {
    fn from(usage: Usage) -> Self {
        Self {
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.completion_tokens,
            total_tokens: usage.prompt_tokens + usage.completion_tokens,
        }
    }
}

/// Joins deltas into whole choices.
#[derive(Debug, Default)]
pub struct Collector {
    choices: Vec<(String, Option<FinishReason>)>,
}

impl Collector {
    /// The whole answer's body.
    pub fn into_body(self, head: &Head, usage: Usage) -> String {
        let choices = self
            .choices
            .iter()
            .enumerate()
            .map(|(index, (text, finish_reason))| Choice {
                index,
                text,
                logprobs: None,
                finish_reason: *finish_reason,
            })
            .collect::<Vec<_>>();
        head.object(&choices, Some(Some(usage)))
    }
}

impl Sink for Collector {
    async fn send(&mut self, delta: Delta) -> Result<(), ClientGone> {
        if self.choices.len() <= delta.index {
            self.choices.resize_with(delta.index + 1, Default::default);
        }
        let (text, finish) = &mut self.choices[delta.index];
        text.push_str(&delta.text);
        *finish = delta.finish;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::block_on;

    #[test]
    fn deltas_are_joined_in_the_order_of_choices() {
        let head =
            Head { id: "cmpl-1".into(), created: 7, model: "m".into(), backend: Backend::Ggml };
        let mut collector = Collector::default();
        for (index, text, finish) in [
            (1, "c", None),
            (0, "a", None),
            (1, "", Some(FinishReason::Stop)),
            (0, "b", Some(FinishReason::Length)),
        ] {
            block_on(collector.send(Delta { index, text: text.into(), finish })).unwrap();
        }
        let body = collector.into_body(&head, Usage { prompt_tokens: 3, completion_tokens: 4 });
        let fingerprint = concat!("fp_spinfer_", env!("CARGO_PKG_VERSION"), "_ggml");
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&body).unwrap(),
            serde_json::json!({
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
}
