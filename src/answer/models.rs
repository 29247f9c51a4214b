//! The bodies of `GET /v1/models`, `GET /v1/models/{id}` and `GET /v1/providers`.

use serde::Serialize;
use spinfer_protocol::{Backend, ModelCard};

use super::to_json;
use crate::models::{Library, Model};

#[derive(Serialize)]
struct List<'a> {
    object: &'static str,
    data: Vec<Entry<'a>>,
}

#[derive(Serialize)]
struct Entry<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    root: &'a str,
    max_model_len: u32,
    custom_metadata: Metadata<'a>,
}

#[derive(Serialize)]
struct Metadata<'a> {
    provider_id: &'static str,
    provider_resource_id: &'a str,
    model_type: &'static str,
}

/// All models.
pub fn models(library: &Library) -> String {
    let data = library.iter().map(|model| Entry::from(&model.card)).collect();
    to_json(&List { object: "list", data })
}

/// One model.
pub fn model(model: &Model) -> String {
    to_json(&Entry::from(&model.card))
}

/// The backends that compute some model, as OGX lists the providers of its API `inference`.
pub fn providers(library: &Library) -> String {
    let has = |backend| library.iter().any(|model| model.card.backend == backend);
    let backends = [Backend::Ggml, Backend::Openvino].into_iter().filter(|backend| has(*backend));
    let data = backends
        .map(|backend| {
            serde_json::json!({
                "api": "inference",
                "provider_id": provider(backend),
                "provider_type": "remote::openai",
                "config": {},
                "health": {"status": "OK"},
            })
        })
        .collect::<Vec<_>>();
    to_json(&serde_json::json!({"data": data}))
}

fn provider(backend: Backend) -> &'static str {
    match backend {
        Backend::Ggml => "ggml",
        Backend::Openvino => "openvino",
    }
}

impl<'a> From<&'a ModelCard> for Entry<'a> {
    fn from(card: &'a ModelCard) -> Self {
        Self {
            id: &card.id,
            object: "model",
            created: card.created,
            owned_by: "spinfer",
            root: &card.id,
            max_model_len: card.context,
            custom_metadata: Metadata {
                provider_id: provider(card.backend),
                provider_resource_id: &card.id,
                model_type: "llm",
            },
        }
    }
}
