//! The models in a folder.
//!
//! `models/<id>/model.gguf` is a model, for llama.cpp, and `models/<id>/openvino_model.xml`, for OpenVINO;
//! ids may contain `/`. Beside the weights may lie the owner's `tokenizer.json` and `model.toml`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use serde::Deserialize;
use spinfer_protocol::{Backend, FimTokens};

use crate::config::ExecutionTarget;
use crate::toml_file;

/// The name of llama.cpp's weights.
pub const WEIGHTS: &str = "model.gguf";

/// The name of OpenVINO's description of a model; its weights have the ending `bin`.
pub const GRAPH: &str = "openvino_model.xml";

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
    /// What it has weights for; not empty.
    pub backends: Vec<Backend>,
}

impl ModelFolder {
    /// What computes it: what its owner says, else the preferred one if it has weights for that.
    pub fn backend(&self, preferred: Option<Backend>) -> anyhow::Result<Backend> {
        let has = |backend: &Backend| self.backends.contains(backend);
        if let Some(own) = self.settings.backend {
            ensure!(
                has(&own),
                "{}: model.toml names a backend that there are no weights for",
                self.id
            );
            return Ok(own);
        }
        let first = self.backends.first().copied();
        preferred
            .filter(has)
            .or(first)
            .with_context(|| format!("{}: there are no weights", self.id))
    }

    /// llama.cpp's weights.
    pub fn weights(&self) -> PathBuf {
        self.path.join(WEIGHTS)
    }

    /// OpenVINO's description of the model.
    pub fn graph(&self) -> PathBuf {
        self.path.join(GRAPH)
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
    /// What computes it, where there are weights for several.
    pub backend: Option<Backend>,
    /// Where it computes.
    pub execution_target: Option<ExecutionTarget>,
    /// How many of its layers are kept on GPUs.
    pub gpu_layers: Option<u32>,
    /// The ids for fill-in-the-middle, instead of those that the weights' metadata has.
    pub fim: Option<FimTokens>,
}

/// The models below these folders, by id.
pub fn find(folders: &[PathBuf]) -> anyhow::Result<BTreeMap<String, ModelFolder>> {
    let mut found = BTreeMap::new();
    for folder in folders {
        ensure!(
            folder.is_dir(),
            "there is no folder {} with models in it; put weights at {}/<id>/{WEIGHTS}",
            folder.display(),
            folder.display()
        );
        descend(folder, &mut Vec::new(), &mut found)?;
    }
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
        let backends: Vec<_> = [(WEIGHTS, Backend::Ggml), (GRAPH, Backend::Openvino)]
            .into_iter()
            .filter(|(file, _)| path.join(file).symlink_metadata().is_ok())
            .map(|(_, backend)| backend)
            .collect();
        if !backends.is_empty() {
            let id = id.join("/");
            let settings = settings(&path)?;
            let model = ModelFolder { id: id.clone(), path, settings, backends };
            let new = model.path.clone();
            if let Some(other) = found.insert(id, model) {
                bail!("{} and {} are models of the same id", other.path.display(), new.display());
            }
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
        let found = find(&[dir.path().into()]).unwrap();
        assert_eq!(found.keys().collect::<Vec<_>>(), ["a", "org/b"]);
        let settings = &found["org/b"].settings;
        assert_eq!(
            (settings.aliases.as_slice(), settings.context),
            (&["bee".to_owned()][..], Some(512))
        );
    }

    #[test]
    fn weights_choose_the_backend_and_settings_choose_between_them() {
        let dir = folder(&[
            ("both/model.gguf", ""),
            ("both/openvino_model.xml", ""),
            ("ir/openvino_model.xml", ""),
            ("wrong/model.gguf", ""),
            ("wrong/model.toml", "backend = \"openvino\""),
        ]);
        let found = find(&[dir.path().into()]).unwrap();
        let of =
            |id: &str, preferred| found[id].backend(preferred).map_err(|error| error.to_string());
        assert_eq!(of("both", None), Ok(Backend::Ggml));
        assert_eq!(of("both", Some(Backend::Openvino)), Ok(Backend::Openvino));
        assert_eq!(of("ir", Some(Backend::Ggml)), Ok(Backend::Openvino));
        assert!(of("wrong", None).unwrap_err().contains("no weights for"));
    }

    #[test]
    fn a_name_means_one_model() {
        let dir = folder(&[
            ("a/model.gguf", ""),
            ("b/model.gguf", ""),
            ("b/model.toml", "aliases = [\"a\"]"),
        ]);
        let error = find(&[dir.path().into()]).unwrap_err().to_string();
        assert!(error.contains("both named \"a\""), "{error}");
        let other = folder(&[("c/model.gguf", "")]);
        let found = find(&[dir.path().join("a"), other.path().into()]);
        assert_eq!(found.unwrap().keys().collect::<Vec<_>>(), ["c"]);
        let same = folder(&[("c/model.gguf", "")]);
        let error = find(&[other.path().into(), same.path().into()]).unwrap_err().to_string();
        assert!(error.contains("of the same id") && error.contains("/c"), "{error}");
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert!(find(&["/nowhere".into()]).unwrap_err().to_string().contains("/nowhere"));
        let dir = folder(&[("a/model.gguf", ""), ("a/model.toml", "alias = 1")]);
        let error = format!("{:#}", find(&[dir.path().into()]).unwrap_err());
        assert!(error.contains("model.toml") && error.contains("alias"), "{error}");
    }
}
