//! Where the repository and its build output lie, and how cargo is called in it.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow};
use serde_json::Value;

use crate::process;
use crate::report;

pub const WASM_TARGET: &str = "wasm32-wasip2";

pub struct Project {
    pub root: PathBuf,
    /// Cargo's target directory, wherever it was configured to be.
    pub target: PathBuf,
    /// Whether any package has integration tests.
    pub has_integration_tests: bool,
}

impl Project {
    /// Asks cargo, since only cargo knows every way a target directory can be set.
    pub fn find() -> Result<Self> {
        let text = process::output(
            cargo_command()
                .args(["metadata", "--no-deps", "--format-version", "1"])
                .current_dir(source_root()),
        )?;
        let metadata: Value =
            serde_json::from_str(&text).context("`cargo metadata` did not answer JSON")?;
        Self::from_metadata(&metadata)
    }

    fn from_metadata(metadata: &Value) -> Result<Self> {
        let path = |key: &str| {
            metadata[key]
                .as_str()
                .map(PathBuf::from)
                .ok_or_else(|| anyhow!("`cargo metadata` named no {key}"))
        };
        let has_integration_tests = metadata["packages"]
            .as_array()
            .into_iter()
            .flatten()
            .flat_map(|package| package["targets"].as_array().into_iter().flatten())
            .flat_map(|target| target["kind"].as_array().into_iter().flatten())
            .any(|kind| kind == "test");
        Ok(Self {
            root: path("workspace_root")?,
            target: path("target_directory")?,
            has_integration_tests,
        })
    }

    /// The folder of what this crate fetched for itself; safe to delete.
    pub fn tools(&self) -> PathBuf {
        self.target.join("tools")
    }

    /// The host program, once built.
    pub fn host(&self) -> PathBuf {
        self.target.join("release").join(format!("spinfer{}", env::consts::EXE_SUFFIX))
    }

    /// The component, once built.
    pub fn component(&self) -> PathBuf {
        self.target.join(WASM_TARGET).join("release/spinfer.wasm")
    }

    /// The component of the tests, once built.
    pub fn probe(&self) -> PathBuf {
        self.target.join(WASM_TARGET).join("release/spinfer_probe.wasm")
    }

    /// The one of WASI 0.2, once built.
    pub fn probe_p2(&self) -> PathBuf {
        self.target.join(WASM_TARGET).join("release/spinfer_probe_p2.wasm")
    }

    /// What the one of WASI 0.2 can depend on, once built.
    pub fn probe_dependency(&self) -> PathBuf {
        self.target.join(WASM_TARGET).join("release/spinfer_probe_dependency.wasm")
    }

    /// A path as a person in the repository would write it.
    pub fn show<'a>(&self, path: &'a Path) -> std::path::Display<'a> {
        path.strip_prefix(&self.root).unwrap_or(path).display()
    }

    /// `cargo`, in the root of the repository.
    pub fn cargo(&self) -> Command {
        let mut command = cargo_command();
        command.current_dir(&self.root);
        command
    }

    /// Keeps a second xtask from setting up at the same time; held until dropped.
    pub fn lock(&self) -> Result<File> {
        let folder = self.tools();
        fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
        let path = folder.join("lock");
        let file = File::create(&path).with_context(|| format!("creating {}", path.display()))?;
        if file.try_lock().is_err() {
            report::say("waiting for another xtask that is setting up");
            file.lock().with_context(|| format!("locking {}", path.display()))?;
        }
        Ok(file)
    }
}

/// The cargo that runs this program. `cargo run` describes the package it runs in the environment; passed on, that
/// would make cargo think that build scripts which look at it are out of date.
fn cargo_command() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in env::vars_os() {
        let foreign = name.to_str().is_some_and(|name| {
            name.starts_with("CARGO_PKG_")
                || name.starts_with("CARGO_MANIFEST_")
                || name.starts_with("CARGO_BIN_")
                || matches!(name, "CARGO_CRATE_NAME" | "CARGO_PRIMARY_PACKAGE")
        });
        if foreign {
            command.env_remove(name);
        }
    }
    // Outputs are looked for where cargo puts them without a default target.
    command.env_remove("CARGO_BUILD_TARGET");
    command
}

/// This crate's folder: as cargo says when it runs us, else the current one.
fn source_root() -> PathBuf {
    env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| ".".into(), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn folders_come_from_cargo() {
        let project = Project::from_metadata(&json!({
            "workspace_root": "/src",
            "target_directory": "/elsewhere",
            "packages": [{"targets": [{"kind": ["lib"]}, {"kind": ["test"]}]}],
        }))
        .unwrap();
        assert_eq!(project.host(), Path::new("/elsewhere/release/spinfer"));
        assert_eq!(project.component(), Path::new("/elsewhere/wasm32-wasip2/release/spinfer.wasm"));
        assert_eq!(project.show(Path::new("/src/models/m")).to_string(), "models/m");
        assert!(project.has_integration_tests);
    }

    #[test]
    fn metadata_without_a_target_directory_is_an_error() {
        assert!(Project::from_metadata(&json!({"workspace_root": "/src"})).is_err());
    }
}
