//! From an application and its models to components that can be run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Instant, UNIX_EPOCH};

use anyhow::{Context, ensure};
use spinfer_gguf::tokenizer::{self, TokenizerFacts};
use spinfer_gguf::{Header, ModelInfo};
use spinfer_llama::{ContextParams, ModelParams};
use spinfer_protocol::{Backend, ModelCard, tensor};
use wasmtime::component::Linker;

use crate::app::files::{self as app_files, Mounts};
use crate::app::{App, Component, Source};
use crate::cache::{self, Cache};
use crate::component::engine::{self, Instances};
use crate::component::snapshot::{self, Preparation};
use crate::component::state::{self, Grants, InstanceState};
use crate::config::{LONGEST_CONTEXT, NnConfig};
use crate::http::worker::Served;
use crate::machine;
use crate::models::catalogue::{self, ModelFolder};
use crate::models::files::{self, VisibleModel};
use crate::models::stamps::Stamps;
use crate::models::trial;
use crate::nn::ggml::{GgmlGraph, Settings};
use crate::nn::metrics::NnMetrics;
use crate::nn::registry::Backend as NnBackend;
use crate::nn::{Arrivals, Graph, Registry};

/// The most bytes that the KV cache of one model takes by default.
const DEFAULT_KV_BYTES: u64 = 1 << 30;

/// The most bytes of logits that one step computes, which bounds how many positions may ask for them.
const STEP_LOGITS_BYTES: u64 = 64 << 20;

/// How components are made ready.
#[derive(Debug, Clone, Copy)]
pub struct Preparations {
    /// Whether they are pre-initialised.
    pub snapshot: bool,
    /// Whether the folders of their files are given as they are.
    pub direct_mounts: bool,
    /// Whether they may write into copies of their files.
    pub writes: bool,
}

/// Components that can be run.
pub struct Loaded {
    /// By id.
    pub components: BTreeMap<String, Arc<Served>>,
    /// The folders of the cache that instances see.
    pub used: Vec<PathBuf>,
}

/// Loads models and components, the first time and whenever they are to be loaded again.
pub struct Loader {
    app: Arc<App>,
    config: NnConfig,
    cache: Cache,
    preparations: Preparations,
    instances: Instances,
    linker: Linker<InstanceState>,
    metrics: NnMetrics,
    arrivals: Arrivals,
}

/// Refuses components whose file isn't there, or isn't what it must be.
pub fn check_sources(app: &App) -> anyhow::Result<()> {
    app.components.iter().try_for_each(|(id, component)| {
        check_source(&component.source)
            .with_context(|| format!("in {}: component {id:?}", app.origin))
    })
}

fn check_source(Source { path, sha256 }: &Source) -> anyhow::Result<()> {
    ensure!(path.is_file(), "there is no file {} (is it built?)", path.display());
    let Some(expected) = sha256 else { return Ok(()) };
    let found = cache::digest_of_file(path)?;
    ensure!(
        found == *expected,
        "the SHA-256 of {} is {found}, but must be {expected}",
        path.display()
    );
    Ok(())
}

impl Loader {
    /// A loader that has loaded nothing yet.
    pub fn new(
        app: Arc<App>,
        config: NnConfig,
        cache: Cache,
        preparations: Preparations,
        metrics: &prometheus::Registry,
    ) -> anyhow::Result<Self> {
        let instances = engine::new(config.requests_in_flight, config.cpu)
            .map_err(anyhow::Error::from)
            .context("can't make the WebAssembly runtime (does nn.cpu fit this machine?)")?;
        Ok(Self {
            app,
            cache,
            preparations,
            linker: state::linker(&instances.engine)?,
            instances,
            metrics: NnMetrics::register(metrics)?,
            arrivals: Arrivals::default(),
            config,
        })
    }

    /// Loads all of it as it is on disk now.
    pub async fn load(&self) -> anyhow::Result<Loaded> {
        check_sources(&self.app)?;
        let models = self.load_models()?;
        let mut stamps = Stamps::open(&self.cache)?;
        let graphs = models.iter().map(|(id, model)| (id.clone(), model.graph.clone()));
        let registry = Registry::new(graphs, self.arrivals.clone());
        let mut loaded = Loaded { components: BTreeMap::new(), used: Vec::new() };
        for (id, component) in &self.app.components {
            let visible: Vec<_> =
                component.ai_models.iter().map(|id| &models[id].visible).collect();
            let of_models = match visible.as_slice() {
                [] => None,
                visible => Some(files::mount(&self.cache, &mut stamps, visible)?),
            };
            loaded.used.extend(of_models.clone());
            let served = self.serve(id, component, of_models, registry.clone()).await?;
            loaded.components.insert(id.clone(), Arc::new(served));
        }
        Ok(loaded)
    }

    /// Makes a component ready; `models` is the folder with what it sees of its models.
    async fn serve(
        &self,
        id: &str,
        component: &Component,
        models: Option<PathBuf>,
        registry: Registry,
    ) -> anyhow::Result<Served> {
        let mounts = self
            .mount_files(component)
            .with_context(|| format!("in {}: component {id:?}", self.app.origin))?;
        let source = &component.source.path;
        let preparation =
            Preparation { models: models.as_deref(), snapshot: self.preparations.snapshot };
        let (engine, linker) = (&self.instances.engine, &self.linker);
        let compiled = snapshot::load(engine, linker, &self.cache, source, &preparation).await?;
        let grants = Grants {
            component: id.into(),
            environment: Arc::new(component.environment.clone()),
            variables: Arc::new(component.variables.clone()),
            models: models.map(Arc::from),
            mounts: Arc::new(mounts),
            writes: self.preparations.writes,
            allowed_hosts: Arc::new(component.allowed_hosts.clone()),
            limits: self.config.guest_limits(),
        };
        let ai_models = component.ai_models.clone();
        Served::new(self.instances.clone(), linker, &compiled, grants, registry, ai_models)
            .map_err(anyhow::Error::from)
            .with_context(|| format!("can't run the component {id:?} ({})", source.display()))
    }

    /// The folders with a component's files.
    fn mount_files(&self, component: &Component) -> anyhow::Result<Mounts> {
        let (folder, files) = (&self.app.folder, &component.files);
        if files.is_empty() {
            return Ok(Mounts::default());
        }
        if component.direct_mounts || self.preparations.direct_mounts {
            return app_files::direct(folder, files);
        }
        app_files::copy(folder, files, &component.exclude_files)
    }

    /// Loads the models that some component may use.
    fn load_models(&self) -> anyhow::Result<BTreeMap<String, LoadedModel>> {
        let mut stamps = Stamps::open(&self.cache)?;
        wanted_models(&self.app, &self.config)?
            .into_iter()
            .map(|(id, model)| Ok((id, self.load_model(&model, &mut stamps)?)))
            .collect()
    }

    fn load_model(&self, model: &ModelFolder, stamps: &mut Stamps) -> anyhow::Result<LoadedModel> {
        let (cache, config) = (&self.cache, &self.config);
        let began = Instant::now();
        let weights = model.weights();
        let in_weights = || weights.display().to_string();
        let header = Header::read(&weights).with_context(in_weights)?;
        let info = ModelInfo::from_header(&header).with_context(in_weights)?;
        let facts = tokenizer::facts(&header).with_context(in_weights)?;
        let sha256 = stamps.digest(&weights)?;
        let tokenizer =
            files::tokenizer(cache, model, &header, &sha256).with_context(in_weights)?;
        let ignore_pre_tokenizer = tokenizer::has_unknown_pre(&header);
        trial::ensure_tried(cache, &weights, &sha256, ignore_pre_tokenizer)?;
        let load = ModelParams { ignore_pre_tokenizer, ..ModelParams::default() };
        let settings = settings(model, config, &info, facts.vocab_size)?;
        let metrics = self.metrics.of(&model.id);
        let arrivals = self.arrivals.clone();
        let graph = GgmlGraph::load(&weights, &load, settings, metrics.clone(), arrivals)
            .with_context(in_weights)?;
        let card = card(model, facts, &graph);
        tracing::info!(
            model = model.id,
            context = card.context,
            sequences = config.sequences,
            took = ?began.elapsed(),
            "model loaded"
        );
        let visible = VisibleModel { card, tokenizer };
        Ok(LoadedModel { graph: Graph::new(NnBackend::Ggml(Arc::new(graph)), metrics), visible })
    }
}

/// A model that is ready to compute.
struct LoadedModel {
    graph: Graph,
    visible: VisibleModel,
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
    let folder = config.models.clone().unwrap_or_else(|| app.folder.join("models"));
    let mut found = catalogue::find(&folder)?;
    for id in &wanted {
        ensure!(
            found.contains_key(*id),
            "in {}: the ai_models list {id:?}, but there is no {}/{id}/model.gguf",
            app.origin,
            folder.display()
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

/// How the model is run: what the settings say, bounded by what the machine has.
fn settings(
    model: &ModelFolder,
    config: &NnConfig,
    info: &ModelInfo,
    vocab_size: u32,
) -> anyhow::Result<Settings> {
    let memory = machine::memory();
    let kv_bytes = info.kv_bytes_per_token().max(1) * u64::from(config.sequences);
    let asked = model.settings.context.or(config.context);
    ensure!(
        asked.is_none_or(|asked| (1..=LONGEST_CONTEXT).contains(&asked)),
        "{}: context is {}, but must be 1 to {LONGEST_CONTEXT}",
        model.id,
        asked.unwrap_or_default()
    );
    let context = asked.unwrap_or_else(|| {
        let affordable = DEFAULT_KV_BYTES.min(memory / 4) / kv_bytes / 256 * 256;
        u64::from(info.context_length).min(affordable.max(256)) as u32
    });
    let bytes = u64::from(context.next_multiple_of(256)) * kv_bytes;
    ensure!(
        bytes <= memory / 10 * 8,
        "{}: a context of {context} tokens for {} sequences takes {} MiB of KV cache, but there are {} MiB",
        model.id,
        config.sequences,
        bytes >> 20,
        memory >> 20
    );
    let row_bytes = u64::from(vocab_size).max(1) * 4;
    let outputs = (STEP_LOGITS_BYTES / row_bytes) as u32;
    Ok(Settings {
        row_length: context,
        context: ContextParams {
            cells: context.next_multiple_of(256) * config.sequences,
            sequences: config.sequences,
            batch: config.batch,
            micro_batch: config.batch,
            outputs: outputs.clamp(config.sequences, config.batch.max(config.sequences)),
            unified: false,
            threads: config.threads,
        },
        max_rows: config.max_rows,
        chunk: config.chunk.min(config.batch),
        prefix_cache: config.prefix_cache,
        longest_wait: config.longest_wait(),
        gather: config.gather(),
    })
}

/// What components are told of the model.
fn card(model: &ModelFolder, facts: TokenizerFacts, graph: &GgmlGraph) -> ModelCard {
    let limits = graph.limits();
    let fim = model.settings.fim.clone().or_else(|| facts.fim());
    ModelCard {
        id: model.id.clone(),
        aliases: model.settings.aliases.clone(),
        created: created(&model.weights()),
        backend: Backend::Ggml,
        inputs: tensor::OPTIONAL_INPUTS.map(str::to_owned).to_vec(),
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
