//! What components see of the models: for each a `tokenizer.json` and a `model.json`, in a folder that
//! is mounted as `/models`. Weights are never in it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use spinfer_gguf::{Header, tokenizer};
use spinfer_protocol::ModelCard;

use super::catalogue::ModelFolder;
use super::stamps::Stamps;
use crate::cache::{self, Cache};

/// Goes into the names of derived tokenizers: another way of deriving makes old ones useless.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "-1");

/// The model's tokenizer: its owner's, or the one derived from the weights, kept in the cache.
pub fn tokenizer(
    cache: &Cache,
    model: &ModelFolder,
    header: &Header,
    weights_sha256: &str,
) -> anyhow::Result<PathBuf> {
    if let Some(path) = model.tokenizer() {
        return Ok(path);
    }
    let path = cache.dir("models")?.join(format!("{weights_sha256}-{VERSION}.tokenizer.json"));
    if !cache.is_intact(&path) {
        tracing::info!(model = model.id, "deriving the tokenizer");
        let derived = tokenizer::derive(header)?;
        cache.write_with_digest(&path, derived.tokenizer_json.as_bytes())?;
    }
    Ok(path)
}

/// A model as components see it.
pub struct VisibleModel {
    /// What `model.json` says.
    pub card: ModelCard,
    /// Where its tokenizer is.
    pub tokenizer: PathBuf,
}

/// A folder with the files of these models, and of no others. It is named by its content, so that an
/// unchanged set is the same folder at each start.
pub fn mount(
    cache: &Cache,
    stamps: &mut Stamps,
    models: &[&VisibleModel],
) -> anyhow::Result<PathBuf> {
    let mut content = String::new();
    let mut cards = Vec::new();
    for model in models {
        let card = serde_json::to_string_pretty(&model.card)?;
        content.push_str(&stamps.digest(&model.tokenizer)?);
        content.push_str(&card);
        cards.push(card);
    }
    let mounts = cache.dir("mounts")?;
    let mount = mounts.join(cache::digest(content.as_bytes()));
    if mount.is_dir() {
        cache.touch(&mount);
        return Ok(mount);
    }
    let aside = tempfile::tempdir_in(&mounts)?;
    for (model, card) in models.iter().zip(cards) {
        let folder = aside.path().join(&model.card.id);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("model.json"), card)?;
        place(&model.tokenizer, &folder.join("tokenizer.json"))
            .with_context(|| format!("can't read {}", model.tokenizer.display()))?;
    }
    match fs::rename(aside.path(), &mount) {
        Ok(()) => drop(aside.keep()),
        // Another process was quicker.
        Err(_) if mount.is_dir() => {}
        Err(error) => return Err(error).context("can't put the models' files in place"),
    }
    cache.prune(&mounts)?;
    Ok(mount)
}

/// A copy: a link would let the owner's later edits reach into a folder that is named by its content.
fn place(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::copy(from, to).map(drop)
}
