//! Loading models for OpenVINO.

use std::sync::Arc;

use anyhow::{Context, ensure};
use spinfer_protocol::{Backend, tensor};

use super::models::{LoadedModel, Models, card};
use crate::config::ExecutionTarget;
use crate::machine;
use crate::models::catalogue::ModelFolder;
use crate::models::exported;
use crate::models::files::VisibleModel;
use crate::nn::Graph;
use crate::nn::openvino::{Device, OpenvinoGraph, Settings, library};
use crate::nn::registry::Backend as NnBackend;

/// The optional inputs that it takes: there is no prefix cache.
const INPUTS: [&str; 9] = [
    tensor::ATTENTION_MASK,
    tensor::POSITION_IDS,
    tensor::BEAM_IDX,
    tensor::LOGITS_TO_KEEP,
    tensor::RESERVE,
    tensor::TOP_K,
    tensor::GATHER_IDS,
    tensor::LOGSUMEXP,
    tensor::SCALE,
];

/// Loads a model. Gives it, and where it computes.
pub fn load(models: &Models, model: &ModelFolder) -> anyhow::Result<(LoadedModel, String)> {
    let config = &models.config;
    let xml = model.graph();
    let weights = xml.with_extension("bin");
    let in_graph = || xml.display().to_string();
    ensure!(
        weights.is_file(),
        "there is no {} with the weights of {}",
        weights.display(),
        xml.display()
    );
    let tokenizer = model
        .tokenizer()
        .with_context(|| format!("there is no tokenizer.json in {}", model.path.display()))?;
    let in_folder = || model.path.display().to_string();
    let exported = exported::read(&model.path)?;
    let trained = exported.context().with_context(in_folder)?;
    let kv_bytes =
        exported.kv_numbers_per_token().unwrap_or(0) * config.openvino.kv_precision.bytes();
    let row_length = models.row_length(model, trained, kv_bytes, machine::memory())?;
    let version = library::load(config.openvino.library.as_deref())
        .with_context(|| format!("the model {:?} needs OpenVINO", model.id))?;
    let device = match model.settings.execution_target.or(config.execution_target) {
        Some(ExecutionTarget::Gpu) => Device::Gpu,
        None | Some(ExecutionTarget::Cpu) => Device::Cpu,
    };
    let settings = Settings {
        device,
        threads: config.threads,
        streams: config.openvino.streams,
        kv_precision: config.openvino.kv_precision,
        row_length,
        sequences: config.sequences,
        max_rows: config.max_rows,
        chunk: config.chunk,
        longest_wait: config.longest_wait(),
    };
    let metrics = models.metrics.of(&model.id);
    let graph =
        OpenvinoGraph::load(&xml, &weights, settings, metrics.clone()).with_context(in_graph)?;
    let limits = graph.limits();
    let facts = exported.facts(limits.vocab_size).with_context(in_folder)?;
    let card = card(model, facts, limits, (Backend::Openvino, &INPUTS), &weights);
    let graph = Graph::new(NnBackend::Openvino(Arc::new(graph)), metrics);
    let loaded = LoadedModel { graph, visible: VisibleModel { card, tokenizer } };
    Ok((loaded, format!("{device} (OpenVINO {version})")))
}
