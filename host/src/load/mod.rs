//! From an application and its models ([`models`]) to components that can be run.

mod ggml;
pub mod models;
mod openvino;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use wasmtime::component::Linker;

use crate::app::files::{self as app_files, Mounts};
use crate::app::source::Source;
use crate::app::{App, Component};
use crate::cache::Cache;
use crate::component::compose;
use crate::component::denied;
use crate::component::engine::{self, Instances};
use crate::component::snapshot::{self, Preparation};
use crate::component::state::{self, Grants, InstanceState};
use crate::config::NnConfig;
use crate::http::worker::Served;
use crate::models::files;
use crate::models::stamps::Stamps;
use crate::nn::metrics::NnMetrics;
use crate::nn::{Arrivals, Registry};
use models::{Models, wanted_models};

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
    models: Models,
}

/// Refuses components whose Wasm isn't there, or isn't what it must be.
pub fn check_sources(app: &App, cache: &Cache) -> anyhow::Result<()> {
    app.components.iter().try_for_each(|(id, component)| {
        let dependencies = component.dependencies.iter().try_for_each(|dependency| {
            let found = dependency.source.file(cache).map(drop);
            found.with_context(|| format!("dependency \"{}\"", dependency.name))
        });
        component
            .source
            .file(cache)
            .and(dependencies)
            .with_context(|| format!("in {}: component {id:?}", app.origin))
    })
}

/// The Wasm of a component, with that of its dependencies in it.
fn wasm(component: &Component, cache: &Cache) -> anyhow::Result<Vec<u8>> {
    let read = |source: &Source| {
        std::fs::read(source.file(cache)?).with_context(|| format!("can't read {source}"))
    };
    let wasm = read(&component.source)?;
    if component.dependencies.is_empty() {
        return Ok(wasm);
    }
    let dependencies = component
        .dependencies
        .iter()
        .map(|dependency| Ok((dependency, read(&dependency.source)?)))
        .collect::<anyhow::Result<Vec<_>>>()?;
    compose::compose(wasm, &dependencies)
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
        let models = Models {
            config: config.clone(),
            cache: cache.clone(),
            metrics: NnMetrics::register(metrics)?,
            arrivals: Arrivals::default(),
        };
        let linker = state::linker(&instances.engine)?;
        Ok(Self { app, config, cache, preparations, instances, linker, models })
    }

    /// Loads all of it as it is on disk now.
    pub async fn load(&self) -> anyhow::Result<Loaded> {
        check_sources(&self.app, &self.cache)?;
        let models = self.models.load(wanted_models(&self.app, &self.config)?)?;
        let mut stamps = Stamps::open(&self.cache)?;
        let graphs = models.iter().map(|(id, model)| (id.clone(), model.graph.clone()));
        let registry = Registry::new(graphs, self.models.arrivals.clone());
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
        let source = component.source.to_string();
        let wasm = wasm(component, &self.cache)
            .with_context(|| format!("in {}: component {id:?}", self.app.origin))?;
        let preparation = Preparation {
            models: models.as_deref(),
            // What is made of several can't be pre-initialised.
            snapshot: self.preparations.snapshot && component.dependencies.is_empty(),
        };
        let engine = &self.instances.engine;
        let compiled =
            snapshot::load(engine, &self.linker, &self.cache, &source, wasm, &preparation).await?;
        let mut linker = self.linker.clone();
        denied::add_to_linker(&mut linker, engine, &compiled)?;
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
        Served::new(self.instances.clone(), &linker, &compiled, grants, registry, ai_models)
            .map_err(anyhow::Error::from)
            .with_context(|| format!("can't run the component {id:?} ({source})"))
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
}
