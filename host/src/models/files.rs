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
    let path = cache.entry("models", &format!("{weights_sha256}-{VERSION}.tokenizer.json"))?;
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
    let mut files = Vec::new();
    let mut content = String::new();
    for model in models {
        let card = serde_json::to_string_pretty(&model.card)?;
        let tokenizer_sha256 = stamps.digest(&model.tokenizer)?;
        content.push_str(&tokenizer_sha256);
        content.push_str(&card);
        files.push(Files { model, card, tokenizer_sha256 });
    }
    let mount = cache.entry("mounts", &cache::digest(content.as_bytes()))?;
    if files.iter().all(|files| files.are_in(&mount)) {
        cache.touch(&mount);
        return Ok(mount);
    }
    let mounts = cache.dir("mounts")?;
    let aside = tempfile::tempdir_in(&mounts)?;
    for files in &files {
        files.write_into(aside.path())?;
    }
    if fs::rename(aside.path(), &mount).is_err() && !files.iter().all(|files| files.are_in(&mount))
    {
        // Not that another process was quicker: what is there is damaged.
        let damaged = tempfile::tempdir_in(&mounts)?;
        let context = || format!("can't put the models' files into {}", mount.display());
        fs::rename(&mount, damaged.path().join("damaged")).with_context(context)?;
        fs::rename(aside.path(), &mount).with_context(context)?;
    }
    cache.prune(&mounts)?;
    Ok(mount)
}

/// The files of one model.
struct Files<'a> {
    model: &'a VisibleModel,
    card: String,
    tokenizer_sha256: String,
}

impl Files<'_> {
    fn card_in(&self, mount: &Path) -> PathBuf {
        mount.join(&self.model.card.id).join("model.json")
    }

    fn tokenizer_in(&self, mount: &Path) -> PathBuf {
        mount.join(&self.model.card.id).join("tokenizer.json")
    }

    fn are_in(&self, mount: &Path) -> bool {
        fs::read(self.card_in(mount)).is_ok_and(|card| card == self.card.as_bytes())
            && cache::digest_of_file(&self.tokenizer_in(mount))
                .is_ok_and(|sha256| sha256 == self.tokenizer_sha256)
    }

    /// Copies, since a link would let the owner's later edits reach into a folder that is named by its
    /// content.
    fn write_into(&self, mount: &Path) -> anyhow::Result<()> {
        fs::create_dir_all(mount.join(&self.model.card.id))?;
        fs::write(self.card_in(mount), &self.card)?;
        fs::copy(&self.model.tokenizer, self.tokenizer_in(mount))
            .with_context(|| format!("can't read {}", self.model.tokenizer.display()))?;
        Ok(())
    }
}
