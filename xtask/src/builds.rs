//! The two builds: the component for Wasm, and the host with llama.cpp in it.

use std::env;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::process;
use crate::project::{Project, WASM_TARGET};
use crate::tools::BuildEnv;

/// What every native cargo command chooses, with the host's features in `SPINFER_FEATURES` (GPU backends). Cargo gives
/// a dependency the features that the chosen packages want of it, so another choice would compile wasmtime and
/// llama.cpp again.
pub fn native() -> Vec<String> {
    native_with(&env::var("SPINFER_FEATURES").unwrap_or_default())
}

fn native_with(features: &str) -> Vec<String> {
    let names = features.split([',', ' ']).filter(|name| !name.is_empty());
    let features: Vec<_> = names.map(|name| format!("spinfer-host/{name}")).collect();
    let mut args = vec!["--release".to_owned(), "--workspace".to_owned()];
    if !features.is_empty() {
        args.extend(["--features".to_owned(), features.join(",")]);
    }
    args
}

/// The same for the component.
pub const WASM: [&str; 5] = ["--release", "--target", WASM_TARGET, "--package", "spinfer"];

pub fn component(project: &Project, tools: &BuildEnv) -> Result<()> {
    cargo_must_succeed(project, cargo(project, tools, "build").args(WASM))?;
    must_exist(&project.component())
}

/// The components that tell the tests what an instance can do, of WASI 0.3 and 0.2, and one that
/// another depends on.
pub fn probes(project: &Project, tools: &BuildEnv) -> Result<()> {
    let mut build = cargo(project, tools, "build");
    build.args(["--release", "--target", WASM_TARGET]);
    build.args(["--package", "spinfer-probe", "--package", "spinfer-probe-p2"]);
    build.args(["--package", "spinfer-probe-dependency"]);
    cargo_must_succeed(project, &mut build)?;
    must_exist(&project.probe())?;
    must_exist(&project.probe_p2())?;
    must_exist(&project.probe_dependency())
}

pub fn host(project: &Project, tools: &BuildEnv) -> Result<()> {
    let mut build = cargo(project, tools, "build");
    build.args(native()).args(["--bin", "spinfer"]);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_the_host_s() {
        assert_eq!(native_with(""), ["--release", "--workspace"]);
        let with = native_with("vulkan, cuda");
        assert_eq!(with[2..], ["--features", "spinfer-host/vulkan,spinfer-host/cuda"]);
    }
}
