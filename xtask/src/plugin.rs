//! The plugin for Spin: the host under the name that Spin calls it by, in an archive, and the manifest from which
//! `spin plugins install --file` installs it.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::models;
use crate::process;
use crate::project::Project;

/// Spin runs the triggers of type `http-nn` with the plugin of this name.
const NAME: &str = "trigger-http-nn";

/// Makes both under `target/plugin` of a host that was built. Gives the manifest's path.
pub fn pack(project: &Project) -> Result<PathBuf> {
    let folder = project.target.join("plugin");
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let program = folder.join(NAME);
    fs::copy(project.host(), &program)
        .with_context(|| format!("copying {}", project.host().display()))?;
    let archive = folder.join(format!("{NAME}.tar.gz"));
    // Nothing of who packed it, or when, so that an unchanged program has an unchanged digest.
    process::run(
        Command::new("tar")
            .args(["--create", "--gzip", "--owner=0", "--group=0", "--numeric-owner", "--mtime=@0"])
            .arg("--directory")
            .arg(&folder)
            .arg("--file")
            .arg(&archive)
            .arg(NAME)
            .env("GZIP", "-n"),
    )?;
    let manifest = folder.join(format!("{NAME}.json"));
    let text = serde_json::to_string_pretty(&describe(&archive, &sha256(&archive)?)?)?;
    fs::write(&manifest, text + "\n").with_context(|| format!("writing {}", manifest.display()))?;
    Ok(manifest)
}

fn describe(archive: &Path, sha256: &str) -> Result<Value> {
    Ok(json!({
        "name": NAME,
        "description": "OpenAI-compatible text completions over wasi-nn: runs triggers of the type http-nn",
        "version": env!("CARGO_PKG_VERSION"),
        "spinCompatibility": ">=4.0",
        "license": "Apache-2.0",
        "packages": [{
            "os": os()?,
            "arch": arch()?,
            "url": format!("file://{}", archive.display()),
            "sha256": sha256,
        }],
    }))
}

/// This machine's system, as Spin names it.
fn os() -> Result<&'static str> {
    match std::env::consts::OS {
        "linux" => Ok("linux"),
        "macos" => Ok("macos"),
        other => bail!("Spin has no name for the system {other:?}"),
    }
}

/// This machine's processor, as Spin names it.
fn arch() -> Result<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("aarch64"),
        other => bail!("Spin has no name for the processor {other:?}"),
    }
}

fn sha256(path: &Path) -> Result<String> {
    let context = || format!("reading {}", path.display());
    let mut file = File::open(path).with_context(context)?;
    let mut hash = Sha256::new();
    io::copy(&mut file, &mut hash).with_context(context)?;
    Ok(models::hex(&hash.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_is_what_spin_reads() {
        let manifest = describe(Path::new("/a/b.tar.gz"), "ab").unwrap();
        assert_eq!(manifest["name"], "trigger-http-nn");
        let package = &manifest["packages"][0];
        assert_eq!(package["url"], "file:///a/b.tar.gz");
        assert_eq!(package["sha256"], "ab");
        assert!(package["os"].is_string() && package["arch"].is_string());
    }
}
