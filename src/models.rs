//! The models that this component may use: what lies under one folder, read once.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use spinfer_protocol::{ApiError, ModelCard};

use crate::tokenizer::Tokenizer;

/// How deep ids may nest (`a/b/c` is three).
const DEEPEST: usize = 8;

/// A model: the facts about it, and its tokenizer.
#[derive(Debug)]
pub struct Model {
    /// The facts.
    pub card: ModelCard,
    /// The tokenizer.
    pub tokenizer: Tokenizer,
}

/// All models, by id. Requests are looked up in this list; nothing of a request ever becomes part
/// of a path.
#[derive(Debug, Default)]
pub struct Library {
    models: Vec<Model>,
    broken: Vec<Broken>,
}

/// A folder that holds a model which can't be used.
#[derive(Debug)]
struct Broken {
    id: String,
    reason: String,
}

impl Library {
    /// Reads every folder at or below `root` that holds a `model.json`. One that can't be read
    /// doesn't keep the others from being used.
    pub fn load(root: &Path) -> Self {
        let mut library = Self::default();
        library.walk(root, "", 0);
        library.models.sort_by(|a, b| a.card.id.cmp(&b.card.id));
        library
    }

    /// A library of these models.
    pub fn from_models(mut models: Vec<Model>) -> Self {
        models.sort_by(|a, b| a.card.id.cmp(&b.card.id));
        Self { models, broken: Vec::new() }
    }

    /// Runs all tokenizers once.
    pub fn warm_up(&self) {
        self.models.iter().for_each(|model| model.tokenizer.warm_up());
    }

    /// All models, in the order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = &Model> {
        self.models.iter()
    }

    /// The model of that id or, where no id is equal, that alias.
    ///
    /// # Errors
    ///
    /// 404 for a name that isn't in the list; 500 for a model whose files can't be used.
    pub fn find(&self, name: &str) -> Result<&Model, ApiError> {
        let by_id = self.models.iter().find(|model| model.card.id == name);
        let by_alias = || {
            self.models.iter().find(|model| model.card.aliases.iter().any(|alias| alias == name))
        };
        if let Some(model) = by_id.or_else(by_alias) {
            return Ok(model);
        }
        match self.broken.iter().find(|broken| broken.id == name) {
            Some(broken) => Err(ApiError::internal(format!(
                "The model {name:?} can't be used: {}.",
                broken.reason
            ))),
            None => Err(ApiError::model_not_found(name)),
        }
    }

    /// The model of that name or, where there is none, the server's default: the one that the
    /// settings name, or the only one.
    ///
    /// # Errors
    ///
    /// As [`Self::find`]; 400 when there are several models and no default.
    pub fn find_or_default(
        &self,
        name: Option<&str>,
        default: Option<&str>,
    ) -> Result<&Model, ApiError> {
        match (name.or(default), self.models.as_slice()) {
            (Some(name), _) => self.find(name),
            (None, [only]) => Ok(only),
            (None, _) => Err(ApiError::invalid(
                "model",
                "`model` must name one of this server's models; GET /v1/models lists them.",
            )),
        }
    }

    fn walk(&mut self, folder: &Path, id: &str, depth: usize) {
        if folder.join("model.json").is_file() {
            match load(folder) {
                Ok(model) => self.models.push(model),
                Err(error) => {
                    self.broken.push(Broken { id: id.to_owned(), reason: format!("{error:#}") });
                }
            }
        }
        if depth == DEEPEST {
            return;
        }
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir()
                && let Some(name) = path.file_name().and_then(|name| name.to_str())
            {
                let id = if id.is_empty() { name.to_owned() } else { format!("{id}/{name}") };
                self.walk(&path, &id, depth + 1);
            }
        }
    }
}

fn load(folder: &Path) -> Result<Model> {
    let card = fs::read(folder.join("model.json")).context("model.json")?;
    let card: ModelCard = serde_json::from_slice(&card).context("model.json")?;
    let json = fs::read(folder.join("tokenizer.json")).context("tokenizer.json")?;
    let tokenizer = Tokenizer::from_json(&json, card.vocab_size as usize)?;
    Ok(Model { card, tokenizer })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn place(root: &Path, folder: &str, card: &str, tokenizer: &str) {
        let folder = root.join(folder);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("model.json"), card).unwrap();
        fs::write(folder.join("tokenizer.json"), tokenizer).unwrap();
    }

    fn card(id: &str, aliases: &[&str]) -> String {
        let mut card = testing::card(id);
        card.aliases = aliases.iter().map(|alias| (*alias).to_owned()).collect();
        serde_json::to_string(&card).unwrap()
    }

    #[test]
    fn models_are_found_by_id_and_alias_only() {
        let root = tempfile::tempdir().unwrap();
        let tokenizer = testing::byte_level_json();
        place(root.path(), "org/b", &card("org/b", &["b", "a"]), &tokenizer);
        place(root.path(), "a", &card("a", &[]), &tokenizer);
        place(root.path(), "bad", "{", &tokenizer);
        place(root.path(), "worse", &card("worse", &[]), "{}");
        fs::create_dir(root.path().join("empty")).unwrap();

        let library = Library::load(root.path());
        library.warm_up();
        assert_eq!(
            library.iter().map(|model| model.card.id.as_str()).collect::<Vec<_>>(),
            ["a", "org/b"]
        );
        assert_eq!(library.find("b").unwrap().card.id, "org/b");
        assert_eq!(library.find("a").unwrap().card.id, "a");
        for name in ["", "org", "org/b/", "./a", "../a", "/a", "empty", "A"] {
            let error = library.find(name).unwrap_err();
            assert_eq!((error.status, error.code), (404, Some("model_not_found")), "{name}");
        }
        assert_eq!(library.find("bad").unwrap_err().status, 500);
        assert!(library.find("worse").unwrap_err().message.contains("tokenizer.json"));
    }

    #[test]
    fn a_name_comes_before_the_default() {
        let model = |id| Model { card: testing::card(id), tokenizer: testing::byte_level() };
        let one = Library::from_models(vec![model("a")]);
        assert_eq!(one.find_or_default(None, None).unwrap().card.id, "a");
        assert_eq!(one.find_or_default(Some("x"), None).unwrap_err().status, 404);
        let two = Library::from_models(vec![model("a"), model("b")]);
        assert_eq!(two.find_or_default(None, Some("b")).unwrap().card.id, "b");
        assert_eq!(two.find_or_default(Some("a"), Some("b")).unwrap().card.id, "a");
        let error = two.find_or_default(None, None).unwrap_err();
        assert_eq!((error.status, error.param.as_deref()), (400, Some("model")));
    }

    #[test]
    fn a_missing_folder_is_an_empty_library() {
        let library = Library::load(Path::new("/nowhere/at/all"));
        assert_eq!(library.iter().count(), 0);
        assert_eq!(library.find("x").unwrap_err().status, 404);
    }
}
