//! The models in a folder.
//!
//! `models/<id>/model.gguf` is a model; ids may contain `/`. Beside the weights may lie the owner's
//! `tokenizer.json` and `model.toml`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use serde::Deserialize;
use spinfer_protocol::FimTokens;

use crate::toml_file;

/// The name of the weights.
pub const WEIGHTS: &str = "model.gguf";

/// How deep ids go: `a/b/c/d`.
pub(super) const DEEPEST: usize = 4;

/// A model on disk.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelFolder {
    /// Its id: its path below the models' folder.
    pub id: String,
    /// The folder.
    pub path: PathBuf,
    /// What its owner says of it.
    pub settings: ModelSettings,
}

impl ModelFolder {
    /// The weights.
    pub fn weights(&self) -> PathBuf {
        self.path.join(WEIGHTS)
    }

    /// The owner's own tokenizer, if there is one.
    pub fn tokenizer(&self) -> Option<PathBuf> {
        Some(self.path.join("tokenizer.json")).filter(|path| path.is_file())
    }
}

/// The file `model.toml`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelSettings {
    /// Other names.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// The longest sequence in tokens.
    pub context: Option<u32>,
    /// The ids for fill-in-the-middle, instead of those that the weights' metadata has.
    pub fim: Option<FimTokens>,
}

/// The models below `folder`, by id.
pub fn find(folder: &Path) -> anyhow::Result<BTreeMap<String, ModelFolder>> {
    ensure!(
        folder.is_dir(),
        "there is no folder {} with models in it; put weights at {}/<id>/{WEIGHTS}",
        folder.display(),
        folder.display()
    );
    let mut found = BTreeMap::new();
    descend(folder, &mut Vec::new(), &mut found)?;
    let mut names: BTreeMap<&str, &str> = BTreeMap::new();
    for model in found.values() {
        for name in std::iter::once(&model.id).chain(&model.settings.aliases) {
            if let Some(other) = names.insert(name, &model.id) {
                bail!("the models {other:?} and {:?} are both named {name:?}", model.id);
            }
        }
    }
    Ok(found)
}

fn descend(
    folder: &Path,
    id: &mut Vec<String>,
    found: &mut BTreeMap<String, ModelFolder>,
) -> anyhow::Result<()> {
    let read = || fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>();
    let entries = read().with_context(|| format!("can't read the folder {}", folder.display()))?;
    for entry in entries {
        let name = entry.file_name();
        let path = entry.path();
        let Some(name) = name.to_str().filter(|name| !name.starts_with('.')) else { continue };
        if !path.is_dir() {
            continue;
        }
        id.push(name.to_owned());
        if path.join(WEIGHTS).symlink_metadata().is_ok() {
            let id = id.join("/");
            let settings = settings(&path)?;
            found.insert(id.clone(), ModelFolder { id, path, settings });
        } else if id.len() < DEEPEST {
            descend(&path, id, found)?;
        }
        id.pop();
    }
    Ok(())
}

fn settings(folder: &Path) -> anyhow::Result<ModelSettings> {
    let path = folder.join("model.toml");
    match path.symlink_metadata() {
        Ok(_) => toml_file::read(&path, "the model's settings"),
        Err(_) => Ok(ModelSettings::default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        dir
    }

    #[test]
    fn ids_are_paths() {
        let dir = folder(&[
            ("a/model.gguf", ""),
            ("org/b/model.gguf", ""),
            ("org/b/model.toml", "aliases = [\"bee\"]\ncontext = 512"),
            ("org/empty/readme", ""),
            (".hidden/model.gguf", ""),
        ]);
        let found = find(dir.path()).unwrap();
        assert_eq!(found.keys().collect::<Vec<_>>(), ["a", "org/b"]);
        let settings = &found["org/b"].settings;
        assert_eq!(
            (settings.aliases.as_slice(), settings.context),
            (&["bee".to_owned()][..], Some(512))
        );
    }

    #[test]
    fn a_name_means_one_model() {
        let dir = folder(&[
            ("a/model.gguf", ""),
            ("b/model.gguf", ""),
            ("b/model.toml", "aliases = [\"a\"]"),
        ]);
        let error = find(dir.path()).unwrap_err().to_string();
        assert!(error.contains("both named \"a\""), "{error}");
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert!(find(Path::new("/nowhere")).unwrap_err().to_string().contains("/nowhere"));
        let dir = folder(&[("a/model.gguf", ""), ("a/model.toml", "alias = 1")]);
        let error = format!("{:#}", find(dir.path()).unwrap_err());
        assert!(error.contains("model.toml") && error.contains("alias"), "{error}");
    }
}
