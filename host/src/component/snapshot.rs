//! Compiling and pre-initialising a component.
//!
//! A component that exports `wizer-initialize` is instantiated once, that export is called, and its
//! memory afterwards becomes the initial memory of every later instance, mapped copy-on-write. What
//! is in it is the same for all requests, so during the call there is no environment, no variable and
//! no network, random numbers and clocks stand still, and of the host there is only the read-only
//! folder `/models`. The compiled result is kept in the cache.

use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use sha2::{Digest, Sha256};
use wasmparser::{Parser, Payload};
use wasmtime::Engine;
use wasmtime::component::{Component, Linker};
use wasmtime_wizer::Wizer;

use super::state::InstanceState;
use crate::app::files::below_folder;
use crate::cache::{self, Cache};

/// The export that is called before the snapshot.
const INITIALIZE: &str = "wizer-initialize";

/// Goes into the key of the cache: a change of what this module does makes old results useless.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " wizer 48 snapshot 1");

/// What a component is prepared with.
pub struct Preparation<'a> {
    /// The folder that it sees as `/models`.
    pub models: Option<&'a Path>,
    /// Whether it is pre-initialised, if it can be.
    pub snapshot: bool,
}

/// Compiles a component that comes from `source`, with a snapshot if it has one to give, or takes the
/// result from the cache.
pub async fn load(
    engine: &Engine,
    linker: &Linker<InstanceState>,
    cache: &Cache,
    source: &str,
    wasm: Vec<u8>,
    preparation: &Preparation<'_>,
) -> anyhow::Result<Component> {
    let began = Instant::now();
    let key = key(engine, &wasm, preparation)?;
    let path = cache.entry("components", &format!("{key}.cwasm"))?;
    if cache.is_intact(&path) {
        match deserialize(engine, &path) {
            Ok(component) => {
                cache.touch(&path);
                tracing::info!(source, took = ?began.elapsed(), "component loaded");
                return Ok(component);
            }
            Err(error) => tracing::warn!(%error, "the cached component is useless"),
        }
    }
    tracing::info!(source, "preparing the component (first start with these models)");
    let initialized = initialize(engine, linker, &wasm, preparation).await;
    let wasm =
        initialized.with_context(|| format!("{source} failed in {INITIALIZE}"))?.unwrap_or(wasm);
    let initialized = began.elapsed();
    let compiled = engine
        .precompile_component(&wasm)
        .map_err(anyhow::Error::from)
        .with_context(|| format!("can't compile the component {source}"))?;
    cache.write_with_digest(&path, &compiled)?;
    cache.prune(&cache.dir("components")?)?;
    tracing::info!(
        ?initialized,
        took = ?began.elapsed(),
        mib = compiled.len() >> 20,
        "component prepared"
    );
    deserialize(engine, &path)
}

fn deserialize(engine: &Engine, path: &Path) -> anyhow::Result<Component> {
    // SAFETY: the file is native code that `load` wrote; it is in a folder that only this user can
    // write, and its digest was checked or it was written just now.
    let mapped = unsafe { Component::deserialize_file(engine, path) };
    let component = mapped.or_else(|error| {
        // On some file systems nothing may be run (`noexec`), but it can be read.
        tracing::debug!(%error, path = %path.display(), "can't map the component");
        let code = std::fs::read(path)?;
        // SAFETY: as above.
        unsafe { Component::deserialize(engine, code) }
    });
    component.map_err(anyhow::Error::from)
}

/// Everything that the result depends on.
fn key(engine: &Engine, wasm: &[u8], preparation: &Preparation<'_>) -> anyhow::Result<String> {
    let mut sha = Sha256::new();
    let mut part = |bytes: &[u8]| {
        sha.update((bytes.len() as u64).to_le_bytes());
        sha.update(bytes);
    };
    part(VERSION.as_bytes());
    part(&compatibility(engine));
    part(cache::digest(wasm).as_bytes());
    part(&[preparation.snapshot.into()]);
    if let Some(models) = preparation.models {
        for file in below_folder(models)? {
            let name = file.strip_prefix(models).unwrap_or(&file);
            part(name.to_string_lossy().as_bytes());
            part(cache::digest_of_file(&file)?.as_bytes());
        }
    }
    Ok(cache::digest(sha.finalize().as_slice()))
}

/// The engine's version, settings and CPU features, as bytes.
fn compatibility(engine: &Engine) -> Vec<u8> {
    struct Bytes(Vec<u8>);
    impl std::hash::Hasher for Bytes {
        fn finish(&self) -> u64 {
            0
        }
        fn write(&mut self, bytes: &[u8]) {
            self.0.extend_from_slice(bytes);
        }
    }
    let mut bytes = Bytes(Vec::new());
    std::hash::Hash::hash(&engine.precompile_compatibility_hash(), &mut bytes);
    bytes.0
}

/// Whether a component itself, and not one inside it, exports that name.
fn exports(wasm: &[u8], name: &str) -> anyhow::Result<bool> {
    let mut depth = 0;
    for payload in Parser::new(0).parse_all(wasm) {
        match payload? {
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) => depth -= 1,
            Payload::ComponentExportSection(section) if depth == 0 => {
                for export in section {
                    if export?.name.name == name {
                        return Ok(true);
                    }
                }
            }
            _ => {}
        }
    }
    Ok(false)
}

/// Runs the export and returns the component with its memory as it is then; `None` if there is no
/// such export.
async fn initialize(
    engine: &Engine,
    linker: &Linker<InstanceState>,
    wasm: &[u8],
    preparation: &Preparation<'_>,
) -> anyhow::Result<Option<Vec<u8>>> {
    if !preparation.snapshot || !exports(wasm, INITIALIZE)? {
        return Ok(None);
    }
    let mut store = InstanceState::frozen(preparation.models)?.into_store(engine);
    // The whole memory passes through a host call when the snapshot is read.
    store.set_hostcall_fuel(usize::MAX);
    let (wasm, _) = Wizer::new()
        .init_func(INITIALIZE)
        // Without the export the result is no valid component.
        .keep_init_func(true)
        .run_component(&mut store, wasm, async |store, component| {
            linker.instantiate_async(store, component).await
        })
        .await?;
    Ok(Some(wasm))
}
