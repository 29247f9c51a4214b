//! `spinfer up`: from `spin.toml` to a server, and to its end.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use anyhow::{Context, bail, ensure};
use spinfer_gguf::tokenizer::{self, TokenizerFacts};
use spinfer_gguf::{Header, ModelInfo};
use spinfer_llama::{ContextParams, ModelParams};
use spinfer_protocol::{Backend, ModelCard, tensor};
use tokio::net::TcpListener;
use tokio::runtime::Handle;

use crate::app::{App, Component, VariableSources};
use crate::cache::Cache;
use crate::component::engine;
use crate::component::snapshot::{self, Preparation};
use crate::component::state::{self, Grants};
use crate::config::{LONGEST_CONTEXT, NnConfig, RuntimeConfig};
use crate::http::access::Access;
use crate::http::server::{StopSignals, serve};
use crate::http::service::Service;
use crate::http::worker::Served;
use crate::models::catalogue::{self, ModelFolder};
use crate::models::files::{self, VisibleModel};
use crate::models::stamps::Stamps;
use crate::models::trial;
use crate::nn::ggml::{GgmlGraph, Settings};
use crate::nn::metrics::NnMetrics;
use crate::nn::registry::Backend as NnBackend;
use crate::nn::{Arrivals, Graph, Registry};

/// What the command line says.
pub struct Options {
    /// `spin.toml` or its folder.
    pub from: PathBuf,
    /// Where to serve.
    pub listen: SocketAddr,
    /// The runtime configuration.
    pub runtime_config_file: Option<PathBuf>,
    /// Values of the application's variables.
    pub variables: Vec<(String, String)>,
    /// Environment of all components.
    pub environment: Vec<(String, String)>,
    /// Whether components are pre-initialised.
    pub snapshot: bool,
}

/// The most bytes that the KV cache of one model takes by default.
const DEFAULT_KV_BYTES: u64 = 1 << 30;

/// The most bytes of logits that one step computes, which bounds how many positions may ask for them.
const STEP_LOGITS_BYTES: u64 = 64 << 20;

/// How often a running server marks what it uses of the cache.
const TOUCH_MOUNTS: Duration = Duration::from_secs(60 * 60);

/// Serves the application until told to stop.
pub async fn run(options: Options) -> anyhow::Result<()> {
    let began = Instant::now();
    let mut stop = StopSignals::new().context("can't take over signals")?;
    let config = RuntimeConfig::load(options.runtime_config_file.as_deref())?.nn;
    let sources = VariableSources::new(options.variables, environment());
    let mut app = App::load(&options.from, &sources)?;
    for component in app.components.values_mut() {
        component.environment.extend(options.environment.iter().cloned());
    }
    let listener = TcpListener::bind(options.listen)
        .await
        .with_context(|| format!("can't listen on {}", options.listen))?;
    let address = listener.local_addr()?;
    let metrics = prometheus::Registry::new();
    let access = Access::new(&app, address.ip())?;
    let app = Arc::new(app);
    let service = Arc::new(Service::new(
        app.clone(),
        access,
        config.requests_in_flight,
        config.client_timeout(),
        metrics.clone(),
    )?);
    // On a thread of its own: most of it is hashing and compiling, which must hold up nobody.
    let cache = Cache::open(Cache::default_root()?)?;
    let to_load = (app.clone(), config, cache.clone());
    let loading = tokio::task::spawn_blocking(move || {
        let (app, config, cache) = to_load;
        Handle::current().block_on(load(&app, &config, &cache, options.snapshot, &metrics))
    });
    // Connections are accepted meanwhile and told that the server is not ready yet.
    let serving = serve(listener, service.clone(), &mut stop);
    tokio::pin!(serving);
    tokio::select! {
        loaded = loading => {
            let (components, mounts) = loaded??;
            if service.components.set(components).is_err() {
                bail!("loaded twice");
            }
            tokio::spawn(keep(cache, mounts));
        }
        () = &mut serving => return Ok(()),
    }
    tracing::info!(took = ?began.elapsed(), "ready");
    announce(address, &app);
    serving.await;
    Ok(())
}

/// The environment, without what is not UTF-8.
fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

/// Says on stdout, where programs read it, that requests are answered now.
fn announce(address: SocketAddr, app: &App) {
    let mut lines = format!("Serving http://{address}\n");
    for route in &app.routes {
        let rest = if route.wildcard { "/..." } else { "" };
        lines += &format!("  {}: http://{address}{}{rest}\n", route.component, route.path);
    }
    // Whoever closed stdout does not want to know.
    let _ = io::stdout().write_all(lines.as_bytes());
}

/// Marks the folders that instances see as used, for as long as the server runs, so that no other
/// process prunes them.
async fn keep(cache: Cache, mounts: Vec<PathBuf>) {
    loop {
        tokio::time::sleep(TOUCH_MOUNTS).await;
        for mount in &mounts {
            cache.touch(mount);
        }
    }
}

/// The components by id, and the folders that instances see.
type Loaded = (BTreeMap<String, Arc<Served>>, Vec<PathBuf>);

/// Loads models and components.
async fn load(
    app: &App,
    config: &NnConfig,
    cache: &Cache,
    snapshot: bool,
    metrics: &prometheus::Registry,
) -> anyhow::Result<Loaded> {
    let arrivals = Arrivals::default();
    let models = load_models(app, config, cache, metrics, &arrivals)?;
    let mut stamps = Stamps::open(cache)?;
    let instances = engine::new(config.requests_in_flight)?;
    let engine = &instances.engine;
    let linker = state::linker(engine)?;
    let graphs = models.iter().map(|(id, model)| (id.clone(), model.graph.clone()));
    let registry = Registry::new(graphs, arrivals);
    let mut components = BTreeMap::new();
    let mut mounts = Vec::new();
    for (id, component) in &app.components {
        let visible: Vec<_> = component.ai_models.iter().map(|id| &models[id].visible).collect();
        let mount = match visible.as_slice() {
            [] => None,
            visible => Some(files::mount(cache, &mut stamps, visible)?),
        };
        let preparation = Preparation { models: mount.as_deref(), snapshot };
        let compiled =
            snapshot::load(engine, &linker, cache, &component.source, &preparation).await?;
        mounts.extend(mount.clone());
        let served = Served::new(
            instances.clone(),
            &linker,
            &compiled,
            grants(id, component, mount, config),
            registry.clone(),
            component.ai_models.clone(),
        )
        .map_err(anyhow::Error::from)
        .with_context(|| format!("can't run the component {}", component.source.display()))?;
        components.insert(id.clone(), Arc::new(served));
    }
    Ok((components, mounts))
}

fn grants(id: &str, component: &Component, mount: Option<PathBuf>, config: &NnConfig) -> Grants {
    Grants {
        component: id.into(),
        environment: Arc::new(component.environment.clone()),
        variables: Arc::new(component.variables.clone()),
        models: mount.map(Arc::from),
        limits: config.guest_limits(),
    }
}

/// A model that is ready to compute.
struct LoadedModel {
    graph: Graph,
    visible: VisibleModel,
}

/// Loads the models that some component may use.
fn load_models(
    app: &App,
    config: &NnConfig,
    cache: &Cache,
    metrics: &prometheus::Registry,
    arrivals: &Arrivals,
) -> anyhow::Result<BTreeMap<String, LoadedModel>> {
    let wanted: BTreeSet<&String> =
        app.components.values().flat_map(|component| &component.ai_models).collect();
    if wanted.is_empty() {
        return Ok(BTreeMap::new());
    }
    let folder = config.models.clone().unwrap_or_else(|| app.folder.join("models"));
    let found = catalogue::find(&folder)?;
    for id in found.keys().filter(|id| !wanted.contains(id)) {
        tracing::info!(model = id, "not loaded: no component's ai_models lists it");
    }
    let mut stamps = Stamps::open(cache)?;
    let metrics = NnMetrics::register(metrics)?;
    wanted
        .into_iter()
        .map(|id| {
            let model = found.get(id).with_context(|| {
                format!(
                    "the application's ai_models list {id:?}, but there is no {}/{id}/model.gguf",
                    folder.display()
                )
            })?;
            let loaded = load_model(model, config, cache, &mut stamps, &metrics, arrivals)?;
            Ok((id.clone(), loaded))
        })
        .collect()
}

fn load_model(
    model: &ModelFolder,
    config: &NnConfig,
    cache: &Cache,
    stamps: &mut Stamps,
    metrics: &NnMetrics,
    arrivals: &Arrivals,
) -> anyhow::Result<LoadedModel> {
    let began = Instant::now();
    let weights = model.weights();
    let in_weights = || weights.display().to_string();
    let header = Header::read(&weights).with_context(in_weights)?;
    let info = ModelInfo::from_header(&header).with_context(in_weights)?;
    let facts = tokenizer::facts(&header).with_context(in_weights)?;
    let sha256 = stamps.digest(&weights)?;
    let tokenizer = files::tokenizer(cache, model, &header, &sha256).with_context(in_weights)?;
    let ignore_pre_tokenizer = tokenizer::has_unknown_pre(&header);
    trial::ensure_tried(cache, &weights, &sha256, ignore_pre_tokenizer)?;
    let load = ModelParams { ignore_pre_tokenizer, ..ModelParams::default() };
    let settings = settings(model, config, &info, facts.vocab_size)?;
    let metrics = metrics.of(&model.id);
    let graph = GgmlGraph::load(&weights, &load, settings, metrics.clone(), arrivals.clone())
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

/// How the model is run: what the settings say, bounded by what the machine has.
fn settings(
    model: &ModelFolder,
    config: &NnConfig,
    info: &ModelInfo,
    vocab_size: u32,
) -> anyhow::Result<Settings> {
    let memory = total_memory();
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
        "{}: a context of {context} tokens for {} sequences takes {} MiB of KV cache, but the machine has {} MiB",
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

/// The machine's memory in bytes.
fn total_memory() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram as u64 * u64::from(info.mem_unit)
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
