//! `spinfer doctor`: what is missing on this machine, before anything is started.

use std::fmt::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Context;
use spinfer_gguf::{Header, ModelInfo};
use wasmtime::PoolingAllocationConfig;

use crate::app::App;
use crate::cache::Cache;
use crate::config::RuntimeConfig;
use crate::load;
use crate::machine;
use crate::models::catalogue;

/// What was found out.
pub struct Report {
    /// A line for each thing that was looked at.
    pub text: String,
    /// Whether the application could be served.
    pub can_serve: bool,
}

/// How serious it is.
enum Finding {
    Fine(String),
    /// It can be done without.
    Aside(String),
    Missing(String),
}

/// What is looked at.
pub struct Patient<'a> {
    /// The application, or why it can't be read.
    pub app: anyhow::Result<App>,
    /// How models are run.
    pub config: &'a RuntimeConfig,
    /// Where derived things are kept.
    pub cache: anyhow::Result<std::path::PathBuf>,
    /// Where it would be served.
    pub listen: SocketAddr,
}

/// Looks at everything.
pub fn examine(patient: Patient<'_>) -> Report {
    let mut report = Report { text: String::new(), can_serve: true };
    report.add("processor", Ok(processor()));
    report.add("kernel", Ok(kernel()));
    let cache = patient.cache.and_then(Cache::open);
    report.add("cache", cache.map(|cache| Finding::Fine(cache.root().display().to_string())));
    report.add("address", address(patient.listen));
    match patient.app {
        Ok(app) => {
            let about = format!("{} in {}", app.name, app.origin);
            report.add("application", Ok(Finding::Fine(about)));
            let sources = load::check_sources(&app);
            let count = app.components.len();
            report.add("components", sources.map(|()| Finding::Fine(format!("{count} built"))));
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
            Ok(Finding::Missing(about)) => ("MISSING", about),
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

fn address(listen: SocketAddr) -> anyhow::Result<Finding> {
    TcpListener::bind(listen).with_context(|| format!("can't listen on {listen}"))?;
    Ok(Finding::Fine(format!("{listen} is free")))
}

fn models(app: &App, config: &RuntimeConfig) -> anyhow::Result<Finding> {
    let folder = load::models_folder(app, &config.nn);
    let wanted: Vec<_> =
        app.components.values().flat_map(|component| &component.ai_models).collect();
    if wanted.is_empty() {
        return Ok(Finding::Fine("no component wants any".to_owned()));
    }
    let found = catalogue::find(&folder)?;
    for id in &wanted {
        let Some(model) = found.get(*id) else {
            let place = folder.join(id).join(catalogue::WEIGHTS);
            return Ok(Finding::Missing(format!("{id}: there is no {}", place.display())));
        };
        let weights = model.weights();
        let header = Header::read(&weights).with_context(|| weights.display().to_string())?;
        ModelInfo::from_header(&header).with_context(|| weights.display().to_string())?;
    }
    Ok(Finding::Fine(format!("{} in {}", wanted.len(), show(&folder))))
}

fn show(folder: &Path) -> String {
    std::path::absolute(folder)
        .map_or_else(|_| folder.display().to_string(), |path| path.display().to_string())
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
