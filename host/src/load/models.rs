//! Loading models, each by its backend.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Instant, UNIX_EPOCH};

use anyhow::ensure;
use spinfer_gguf::tokenizer::TokenizerFacts;
use spinfer_protocol::{Backend, ModelCard};

use super::{ggml, openvino};
use crate::app::App;
use crate::cache::Cache;
use crate::config::{LONGEST_CONTEXT, NnConfig};
use crate::models::catalogue::{self, ModelFolder};
use crate::models::files::VisibleModel;
use crate::models::stamps::Stamps;
use crate::nn::convention::Limits;
use crate::nn::metrics::NnMetrics;
use crate::nn::{Arrivals, Graph};

/// The most bytes that the KV cache of one model takes by default.
const DEFAULT_KV_BYTES: u64 = 1 << 30;

/// What loading models needs.
pub struct Models {
    /// How they are run.
    pub config: NnConfig,
    /// Where what is derived from them is kept.
    pub cache: Cache,
    /// Where they are counted.
    pub metrics: NnMetrics,
    /// The requests that will ask for them.
    pub arrivals: Arrivals,
}

/// A model that is ready to compute.
pub struct LoadedModel {
    /// What computes it.
    pub graph: Graph,
    /// What components see of it.
    pub visible: VisibleModel,
}

impl Models {
    /// Loads models, by id.
    pub fn load(
        &self,
        wanted: BTreeMap<String, ModelFolder>,
    ) -> anyhow::Result<BTreeMap<String, LoadedModel>> {
        let mut stamps = Stamps::open(&self.cache)?;
        wanted
            .into_iter()
            .map(|(id, model)| Ok((id, self.load_model(&model, &mut stamps)?)))
            .collect()
    }

    fn load_model(&self, model: &ModelFolder, stamps: &mut Stamps) -> anyhow::Result<LoadedModel> {
        let began = Instant::now();
        let (loaded, place) = match model.backend(self.config.backend)? {
            Backend::Ggml => ggml::load(self, model, stamps),
            Backend::Openvino => openvino::load(self, model),
        }?;
        let card = &loaded.visible.card;
        tracing::info!(
            model = model.id,
            context = card.context,
            sequences = self.config.sequences,
            on = place,
            took = ?began.elapsed(),
            "model loaded"
        );
        Ok(loaded)
    }

    /// The longest row of a model that was trained for `trained` tokens, each of so many bytes of KV cache in
    /// each sequence: what the settings say, bounded by the bytes of memory that there are where it computes.
    pub(super) fn row_length(
        &self,
        model: &ModelFolder,
        trained: u32,
        kv_bytes_per_token: u64,
        memory: u64,
    ) -> anyhow::Result<u32> {
        let sequences = self.config.sequences;
        let kv_bytes = kv_bytes_per_token.max(1) * u64::from(sequences);
        let asked = model.settings.context.or(self.config.context);
        ensure!(
            asked.is_none_or(|asked| (1..=LONGEST_CONTEXT).contains(&asked)),
            "{}: context is {}, but must be 1 to {LONGEST_CONTEXT}",
            model.id,
            asked.unwrap_or_default()
        );
        let context = asked.unwrap_or_else(|| {
            let affordable = DEFAULT_KV_BYTES.min(memory / 4) / kv_bytes / 256 * 256;
            u64::from(trained).min(affordable.max(256)) as u32
        });
        let bytes = u64::from(context.next_multiple_of(256)) * kv_bytes;
        ensure!(
            bytes <= memory / 10 * 8,
            "{}: a context of {context} tokens for {sequences} sequences takes {} MiB of KV cache, but there are \
             {} MiB",
            model.id,
            bytes >> 20,
            memory >> 20
        );
        Ok(context)
    }
}

/// The models that some component may use, by id.
pub fn wanted_models(
    app: &App,
    config: &NnConfig,
) -> anyhow::Result<BTreeMap<String, ModelFolder>> {
    let wanted: BTreeSet<&String> =
        app.components.values().flat_map(|component| &component.ai_models).collect();
    if wanted.is_empty() {
        return Ok(BTreeMap::new());
    }
    let folders = match config.models.as_slice() {
        [] => vec![app.folder.join("models")],
        folders => folders.to_owned(),
    };
    let mut found = catalogue::find(&folders)?;
    for id in &wanted {
        ensure!(
            found.contains_key(*id),
            "in {}: the ai_models list {id:?}, but there is no {id}/model.gguf in {}",
            app.origin,
            folders
                .iter()
                .map(|folder| folder.display().to_string())
                .collect::<Vec<_>>()
                .join(", ")
        );
    }
    found.retain(|id, _| {
        let is_wanted = wanted.contains(id);
        if !is_wanted {
            tracing::info!(model = id, "not loaded: no component's ai_models lists it");
        }
        is_wanted
    });
    Ok(found)
}

/// What components are told of a model: its backend with the optional inputs that it takes, and the file
/// that its age is told by.
pub(super) fn card(
    model: &ModelFolder,
    facts: TokenizerFacts,
    limits: Limits,
    backend: (Backend, &[&str]),
    weights: &Path,
) -> ModelCard {
    let fim = model.settings.fim.clone().or_else(|| facts.fim());
    let (backend, inputs) = backend;
    ModelCard {
        id: model.id.clone(),
        aliases: model.settings.aliases.clone(),
        created: created(weights),
        backend,
        inputs: inputs.iter().map(|&input| input.to_owned()).collect(),
        rewinds: limits.rewinds,
        context: limits.context,
        max_rows: limits.max_rows,
        vocab_size: limits.vocab_size,
        bos: facts.bos,
        eos: facts.eos,
        pad: facts.pad,
        end_of_generation: facts.end_of_generation,
        add_bos: facts.add_bos,
        add_eos: facts.add_eos,
        fim,
        chat_template: facts.chat_template,
    }
}

/// When the weights were made, in Unix seconds; 0 if the file system doesn't say.
fn created(weights: &Path) -> u64 {
    let modified = std::fs::metadata(weights).and_then(|metadata| metadata.modified());
    modified
        .ok()
        .and_then(|time| time.duration_since(UNIX_EPOCH).ok())
        .map_or(0, |since| since.as_secs())
}
