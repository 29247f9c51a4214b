//! The two builds: the component for Wasm, and the host with llama.cpp in it.

use std::env;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::process;
use crate::project::{Project, WASM_TARGET};
use crate::tools::BuildEnv;

/// What every native cargo command chooses. Cargo gives a dependency the features that the chosen packages want of it,
/// so another choice would compile wasmtime and llama.cpp again.
pub const NATIVE: [&str; 2] = ["--release", "--workspace"];
/// The same for the component.
pub const WASM: [&str; 5] = ["--release", "--target", WASM_TARGET, "--package", "spinfer"];

pub fn component(project: &Project, tools: &BuildEnv) -> Result<()> {
    cargo_must_succeed(project, cargo(project, tools, "build").args(WASM))?;
    must_exist(&project.component())
}

/// The components that tell the tests what an instance can do, of WASI 0.3 and 0.2.
pub fn probes(project: &Project, tools: &BuildEnv) -> Result<()> {
    let mut build = cargo(project, tools, "build");
    build.args(["--release", "--target", WASM_TARGET]);
    build.args(["--package", "spinfer-probe", "--package", "spinfer-probe-p2"]);
    cargo_must_succeed(project, &mut build)?;
    must_exist(&project.probe())?;
    must_exist(&project.probe_p2())
}

pub fn host(project: &Project, tools: &BuildEnv) -> Result<()> {
    let mut build = cargo(project, tools, "build");
    build.args(NATIVE).args(["--bin", "spinfer"]);
    cargo_must_succeed(project, &mut build)?;
    must_exist(&project.host())
}

/// A cargo command that sees the tools. CI builds what was committed, and nothing newer.
pub fn cargo(project: &Project, tools: &BuildEnv, subcommand: &str) -> Command {
    let mut cargo = project.cargo();
    cargo.arg(subcommand).stdin(Stdio::null());
    if env::var_os("CI").is_some() {
        cargo.arg("--locked");
    }
    tools.apply(&mut cargo);
    cargo
}

/// Runs a cargo command with its own progress on the terminal. When it failed for want of the network, the error says
/// so, with cargo's last lines.
pub fn cargo_must_succeed(project: &Project, cargo: &mut Command) -> Result<()> {
    let shown = process::show(cargo);
    let status = cargo.status().with_context(|| format!("could not run `{shown}`"))?;
    if status.success() {
        return Ok(());
    }
    crates_are_here(project)?;
    bail!("`{shown}` failed ({status}); what cargo printed above says why")
}

/// Fails if a crate of the lock file is missing and can't be downloaded.
fn crates_are_here(project: &Project) -> Result<()> {
    let mut fetch = project.cargo();
    fetch.args(["fetch", "--target", "host-tuple", "--target", WASM_TARGET]);
    process::output(&mut fetch)
        .map(|_| ())
        .map_err(process::not_to_be_had("a crate that is needed"))
}

fn must_exist(file: &Path) -> Result<()> {
    if !file.exists() {
        bail!(
            "cargo succeeded, but there is no {}; is another output folder set in cargo's configuration?",
            file.display()
        );
    }
    Ok(())
}
