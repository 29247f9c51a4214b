//! `spinfer doctor`: what is missing on this machine, before anything is started.

use std::fmt::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::Context;
use spinfer_gguf::{Header, ModelInfo};
use spinfer_llama::{GPU_BACKENDS, Gpu, gpus};
use spinfer_protocol::Backend;
use wasmtime::PoolingAllocationConfig;

use crate::app::App;
use crate::cache::Cache;
use crate::config::RuntimeConfig;
use crate::http::tls::{self, TlsFiles};
use crate::load;
use crate::machine;
use crate::models::{exported, placement};
use crate::nn::openvino::library;

/// What was found out.
pub struct Report {
    /// A line for each thing that was looked at.
    pub text: String,
    /// Whether the application could be served.
    pub can_serve: bool,
}

/// How serious it is; what can't be done without is an error.
enum Finding {
    Fine(String),
    /// It can be done without.
    Aside(String),
}

/// What is looked at.
pub struct Patient<'a> {
    /// The application, or why it can't be read.
    pub app: anyhow::Result<App>,
    /// How models are run.
    pub config: &'a RuntimeConfig,
    /// Where derived things are kept.
    pub cache: anyhow::Result<PathBuf>,
    /// Where it would be served.
    pub listen: SocketAddr,
    /// How connections would be encrypted, if they were.
    pub tls: Option<&'a TlsFiles>,
}

/// Looks at everything.
pub fn examine(patient: Patient<'_>) -> Report {
    let mut report = Report { text: String::new(), can_serve: true };
    report.add("processor", Ok(processor()));
    report.add("kernel", Ok(kernel()));
    report.add("GPU", Ok(gpu()));
    let cache =
        patient.cache.and_then(|root| Ok((root.display().to_string(), Cache::open_or_read(root)?)));
    let (found, cache) = match cache {
        Ok((shown, cache)) => (Ok(about_cache(shown, &cache)), Some(cache)),
        Err(error) => (Err(error), None),
    };
    report.add("cache", found);
    report.add("address", address(patient.listen));
    if let Some(files) = patient.tls {
        let about = || files.certificate.display().to_string();
        report.add("TLS", tls::acceptor(files).map(|_| Finding::Fine(about())));
    }
    match patient.app {
        Ok(app) => {
            let about = format!("{} in {}", app.name, app.origin);
            report.add("application", Ok(Finding::Fine(about)));
            if let Some(cache) = cache {
                let sources = load::check_sources(&app, &cache);
                let count = app.components.len();
                report.add("components", sources.map(|()| Finding::Fine(format!("{count} built"))));
            }
            report.add("models", models(&app, patient.config));
        }
        Err(error) => report.add("application", Err(error)),
    }
    for (program, why) in [
        ("spin", "only `spin up` needs it; `spinfer up` doesn't"),
        ("python3", "only `spinfer pull smollm2-135m-instruct` needs it"),
    ] {
        report.add(program, Ok(there_is(program, why)));
    }
    report
}

impl Report {
    fn add(&mut self, what: &str, finding: anyhow::Result<Finding>) {
        let (mark, about) = match finding {
            Ok(Finding::Fine(about)) => ("ok", about),
            Ok(Finding::Aside(about)) => ("-", about),
            Err(error) => ("MISSING", format!("{error:#}")),
        };
        self.can_serve &= mark != "MISSING";
        let _ = writeln!(self.text, "{mark:8} {what:12} {about}");
    }
}

fn processor() -> Finding {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let memory = machine::memory() >> 20;
    Finding::Fine(format!("{cores} cores, {memory} MiB of memory, {}", std::env::consts::ARCH))
}

fn kernel() -> Finding {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    match PoolingAllocationConfig::is_pagemap_scan_available() {
        true => Finding::Fine(release),
        false => {
            Finding::Aside(format!("{release}: instances start faster with Linux 6.7 or later"))
        }
    }
}

fn gpu() -> Finding {
    let gpus = gpus();
    if gpus.is_empty() {
        return Finding::Aside(format!(
            "models compute on the CPU: {}",
            placement::missing(GPU_BACKENDS)
        ));
    }
    let about = |gpu: &Gpu| {
        let (free, memory) = (gpu.free >> 20, gpu.memory >> 20);
        format!("{}: {}, {free} of {memory} MiB free", gpu.name, gpu.description)
    };
    Finding::Fine(gpus.iter().map(about).collect::<Vec<_>>().join("; "))
}

fn address(listen: SocketAddr) -> anyhow::Result<Finding> {
    TcpListener::bind(listen).with_context(|| format!("can't listen on {listen}"))?;
    Ok(Finding::Fine(format!("{listen} is free")))
}

fn models(app: &App, config: &RuntimeConfig) -> anyhow::Result<Finding> {
    let wanted = load::models::wanted_models(app, &config.nn)?;
    let gpus = gpus();
    for model in wanted.values() {
        let in_model = || format!("the model {:?}", model.id);
        if model.backend(config.nn.backend)? == Backend::Openvino {
            library::load(config.nn.openvino.library.as_deref()).with_context(in_model)?;
            exported::read(&model.path)?;
            continue;
        }
        placement::gpu_layers(&model.settings, &config.nn, &gpus).with_context(in_model)?;
        let weights = model.weights();
        let header = Header::read(&weights).with_context(|| weights.display().to_string())?;
        ModelInfo::from_header(&header).with_context(|| weights.display().to_string())?;
    }
    let ids: Vec<_> = wanted.into_keys().collect();
    Ok(Finding::Fine(if ids.is_empty() { "none are wanted".to_owned() } else { ids.join(", ") }))
}

fn about_cache(shown: String, cache: &Cache) -> Finding {
    match cache.is_kept() {
        true => Finding::Fine(shown),
        false => Finding::Aside(format!(
            "{shown} can't be written: what is not in it is prepared at each start"
        )),
    }
}

fn there_is(program: &str, why: &str) -> Finding {
    let mut version = Command::new(program);
    version.arg("--version").stdin(Stdio::null()).stderr(Stdio::null());
    match version.output() {
        Ok(output) if output.status.success() => {
            Finding::Fine(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        }
        _ => Finding::Aside(format!("not on the PATH; {why}")),
    }
}
