//! `spinfer up`: from an application to a server, and to its end.

use std::convert::Infallible;
use std::io::{self, ErrorKind, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::app::{App, VariableSources};
use crate::cache::Cache;
use crate::config::RuntimeConfig;
use crate::doctor::{self, Patient, Report};
use crate::http::access::Access;
use crate::http::server::{StopSignals, serve};
use crate::http::service::Service;
use crate::http::tls::{self, TlsFiles};
use crate::load::{self, Loaded, Loader, Preparations};

/// Where the application is.
pub enum Origin {
    /// `spin.toml` or its folder.
    Manifest(PathBuf),
    /// A `file:` URL of what Spin has made of it.
    Locked(String),
}

/// What the command line says.
pub struct Options {
    /// The application.
    pub origin: Origin,
    /// Where to serve.
    pub listen: SocketAddr,
    /// Whether another port may be served on where that one is in use.
    pub find_free_port: bool,
    /// How connections are encrypted, if they are.
    pub tls: Option<TlsFiles>,
    /// The runtime configuration.
    pub runtime_config_file: Option<PathBuf>,
    /// Values of the application's variables.
    pub variables: Vec<(String, String)>,
    /// Environment of all components.
    pub environment: Vec<(String, String)>,
    /// Where derived things are kept; none: where they are by default.
    pub cache: Option<PathBuf>,
    /// How components are made ready.
    pub preparations: Preparations,
}

/// How often a running server marks what it uses of the cache.
const TOUCH: Duration = Duration::from_secs(60 * 60);

/// Serves the application until told to stop.
pub async fn run(options: Options) -> anyhow::Result<()> {
    let began = Instant::now();
    let mut stop = StopSignals::new().context("can't take over signals")?;
    let mut hangup = signal(SignalKind::hangup()).context("can't take over signals")?;
    let config = RuntimeConfig::load(options.runtime_config_file.as_deref())?;
    let app = Arc::new(application(&options, &config)?);
    for id in &app.private {
        tracing::info!(
            component = id,
            "not loaded: its route is private, and nobody here calls it"
        );
    }
    let cache = Cache::open_or_read(options.cache.map_or_else(Cache::default_root, Ok)?)?;
    load::check_sources(&app, &cache)?;
    let tls = options.tls.as_ref().map(tls::acceptor).transpose()?;
    let listener = listen(options.listen, options.find_free_port).await?;
    let address = listener.local_addr()?;
    let metrics = prometheus::Registry::new();
    let service = Arc::new(Service::new(
        app.clone(),
        Access::new(&app, address.ip())?,
        config.nn.requests_in_flight,
        config.nn.client_timeout(),
        tls.is_some(),
        metrics.clone(),
    )?);
    // On a thread of its own: most of it is hashing and compiling, which must hold up nobody.
    let to_load = (app.clone(), config.nn, cache.clone());
    let loading = tokio::task::spawn_blocking(move || {
        let (app, config, cache) = to_load;
        let loader = Loader::new(app, config, cache, options.preparations, &metrics)?;
        let loaded = Handle::current().block_on(loader.load())?;
        anyhow::Ok((Arc::new(loader), loaded))
    });
    // Connections are accepted meanwhile and told that the server is not ready yet.
    let encrypted = tls.is_some();
    let serving = serve(listener, tls, service.clone(), &mut stop);
    tokio::pin!(serving);
    let (loader, loaded) = tokio::select! {
        loaded = loading => loaded??,
        () = &mut serving => return Ok(()),
    };
    service.serve(loaded.components);
    tracing::info!(took = ?began.elapsed(), "ready");
    announce(address, encrypted, &app);
    tokio::select! {
        never = keep_up_to_date(&mut hangup, loader, service, cache, loaded.used) => match never {},
        () = serving => Ok(()),
    }
}

/// At each SIGHUP, loads models and components again as they are on disk then, and lets them answer. Until
/// they can, and if they can't, the old ones do. Meanwhile, marks what instances see of the cache as used,
/// so that no other process prunes it.
async fn keep_up_to_date(
    hangup: &mut Signal,
    loader: Arc<Loader>,
    service: Arc<Service>,
    cache: Cache,
    mut used: Vec<PathBuf>,
) -> Infallible {
    loop {
        tokio::select! {
            Some(()) = hangup.recv() => {}
            () = tokio::time::sleep(TOUCH) => {
                used.iter().for_each(|folder| cache.touch(folder));
                continue;
            }
        }
        let began = Instant::now();
        tracing::info!("loading models and components again");
        let loader = loader.clone();
        let loading =
            tokio::task::spawn_blocking(move || Handle::current().block_on(loader.load()));
        match loading.await.map_err(anyhow::Error::from).flatten() {
            Ok(Loaded { components, used: folders }) => {
                service.serve(components);
                used = folders;
                tracing::info!(took = ?began.elapsed(), "new models and components answer now");
            }
            Err(error) => tracing::error!("the old models and components go on: {error:#}"),
        }
    }
}

fn application(options: &Options, config: &RuntimeConfig) -> anyhow::Result<App> {
    let sources = VariableSources::new(
        options.variables.iter().cloned(),
        &config.variables_provider,
        &config.folder,
        &environment(),
    )?;
    let mut app = match &options.origin {
        Origin::Manifest(path) => App::load(path, &sources)?,
        Origin::Locked(url) => App::load_locked(url, &sources)?,
    };
    for component in app.components.values_mut() {
        component.environment.extend(options.environment.iter().cloned());
    }
    Ok(app)
}

/// Prepares everything, and keeps it in the cache for later starts.
pub async fn prewarm(options: Options) -> anyhow::Result<String> {
    let began = Instant::now();
    let config = RuntimeConfig::load(options.runtime_config_file.as_deref())?;
    let app = Arc::new(application(&options, &config)?);
    let cache = Cache::open(options.cache.map_or_else(Cache::default_root, Ok)?)?;
    let metrics = prometheus::Registry::new();
    let root = cache.root().display().to_string();
    let loader = Loader::new(app, config.nn, cache, options.preparations, &metrics)?;
    let components = loader.load().await?.components.len();
    Ok(format!(
        "{components} components and their models are prepared in {root} ({:.1?})\n",
        began.elapsed()
    ))
}

/// Looks for what is missing.
pub fn examine(options: &Options) -> anyhow::Result<Report> {
    let config = RuntimeConfig::load(options.runtime_config_file.as_deref())?;
    Ok(doctor::examine(Patient {
        app: application(options, &config),
        config: &config,
        cache: options.cache.clone().map_or_else(Cache::default_root, Ok),
        listen: options.listen,
        tls: options.tls.as_ref(),
    }))
}

/// The environment, without what is not UTF-8.
fn environment() -> Vec<(String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// Listens at an address or, where another port will do, at the next one that is free.
async fn listen(mut address: SocketAddr, find_free_port: bool) -> anyhow::Result<TcpListener> {
    loop {
        match (TcpListener::bind(address).await, address.port().checked_add(1)) {
            (Ok(listener), _) => return Ok(listener),
            (Err(error), Some(next)) if find_free_port && error.kind() == ErrorKind::AddrInUse => {
                address.set_port(next);
            }
            (Err(error), _) => {
                return Err(error).with_context(|| format!("can't listen on {address}"));
            }
        }
    }
}

/// Says on stdout, where programs read it, that requests are answered now.
fn announce(address: SocketAddr, encrypted: bool, app: &App) {
    let url = format!("{}://{address}", if encrypted { "https" } else { "http" });
    let mut lines = format!("Serving {url}\n");
    for route in &app.routes {
        lines += &format!("  {}: {url}{}\n", route.component, route.pattern);
    }
    // Whoever closed stdout does not want to know.
    let _ = io::stdout().write_all(lines.as_bytes());
}
