//! Models in the layout in which Hugging Face's tools export them: `config.json`,
//! `generation_config.json`, `tokenizer.json` and `tokenizer_config.json` beside the weights.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, ensure};
use serde::Deserialize;
use spinfer_gguf::tokenizer::{TokenizerFacts, fim_by_text};

/// What the files say of a model.
#[derive(Debug)]
pub struct Exported {
    config: Config,
    generation: Config,
    tokenizer: Tokenizer,
    words: TokenizerConfig,
}

/// `config.json`, and `generation_config.json`, which says the same better.
#[derive(Debug, Default, Deserialize)]
struct Config {
    vocab_size: Option<u32>,
    #[serde(alias = "n_positions", alias = "n_ctx")]
    max_position_embeddings: Option<u32>,
    bos_token_id: Option<u32>,
    eos_token_id: Option<OneOrMore>,
    pad_token_id: Option<u32>,
    hidden_size: Option<u32>,
    num_hidden_layers: Option<u32>,
    num_attention_heads: Option<u32>,
    num_key_value_heads: Option<u32>,
    head_dim: Option<u32>,
    /// Where a model of several kinds of input keeps what is of text.
    text_config: Option<Box<Config>>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(u32),
    More(Vec<u32>),
}

/// `tokenizer_config.json`.
#[derive(Debug, Default, Deserialize)]
struct TokenizerConfig {
    add_bos_token: Option<bool>,
    add_eos_token: Option<bool>,
    chat_template: Option<ChatTemplate>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum ChatTemplate {
    One(String),
    Named(Vec<NamedTemplate>),
}

#[derive(Debug, Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

/// What of `tokenizer.json` is about single tokens.
#[derive(Debug, Default, Deserialize)]
struct Tokenizer {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    post_processor: Option<PostProcessor>,
}

#[derive(Debug, Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
}

/// Of its kinds, two put tokens around a text: a template, or a sequence with one in it.
#[derive(Debug, Default, Deserialize)]
struct PostProcessor {
    #[serde(default)]
    single: Vec<Piece>,
    #[serde(default)]
    special_tokens: BTreeMap<String, SpecialToken>,
    #[serde(default)]
    processors: Vec<PostProcessor>,
}

#[derive(Debug, Deserialize)]
enum Piece {
    SpecialToken { id: String },
    Sequence {},
}

#[derive(Debug, Deserialize)]
struct SpecialToken {
    ids: Vec<u32>,
}

/// Reads the files in a folder.
///
/// # Errors
///
/// When a file can't be read; `generation_config.json` and `tokenizer_config.json` may be missing.
pub fn read(folder: &Path) -> anyhow::Result<Exported> {
    let config: Config = json(folder, "config.json")?.with_context(|| {
        format!(
            "there is no config.json in {}: it says how the model was trained",
            folder.display()
        )
    })?;
    let tokenizer: Tokenizer = json(folder, "tokenizer.json")?
        .with_context(|| format!("there is no tokenizer.json in {}", folder.display()))?;
    let generation: Config = json(folder, "generation_config.json")?.unwrap_or_default();
    let mut words: TokenizerConfig = json(folder, "tokenizer_config.json")?.unwrap_or_default();
    if let Ok(template) = fs::read_to_string(folder.join("chat_template.jinja")) {
        words.chat_template = Some(ChatTemplate::One(template));
    }
    Ok(Exported { config, generation, tokenizer, words })
}

fn json<T: for<'de> Deserialize<'de>>(folder: &Path, name: &str) -> anyhow::Result<Option<T>> {
    let path = folder.join(name);
    let read = || match fs::read(&path) {
        Ok(text) => anyhow::Ok(Some(serde_json::from_slice(&text)?)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    };
    read().with_context(|| format!("can't read {}", path.display()))
}

impl Exported {
    /// The context length that the model was trained with, in tokens.
    pub fn context(&self) -> anyhow::Result<u32> {
        self.of_text(|config| config.max_position_embeddings)
            .filter(|&context| context > 0)
            .context("config.json: there is no max_position_embeddings")
    }

    /// Numbers in the KV cache for each token; none if the file doesn't say.
    pub fn kv_numbers_per_token(&self) -> Option<u64> {
        let of = |get: fn(&Config) -> Option<u32>| self.of_text(get).map(u64::from);
        let heads = of(|config| config.num_attention_heads)?;
        let kv_heads = of(|config| config.num_key_value_heads).unwrap_or(heads);
        let of_head = of(|config| config.head_dim)
            .or_else(|| of(|config| config.hidden_size)?.checked_div(heads))?;
        Some(2 * of(|config| config.num_hidden_layers)? * kv_heads * of_head)
    }

    /// Tokens in the vocabulary, if the file says.
    pub fn vocab_size(&self) -> Option<u32> {
        self.of_text(|config| config.vocab_size)
    }

    fn of_text<T>(&self, get: impl Fn(&Config) -> Option<T>) -> Option<T> {
        get(&self.config).or_else(|| get(self.config.text_config.as_deref()?))
    }

    /// Its tokens, of which there are so many in the weights.
    ///
    /// # Errors
    ///
    /// When the files speak of others.
    pub fn facts(self, vocab_size: u32) -> anyhow::Result<TokenizerFacts> {
        let trained = self.vocab_size();
        ensure!(
            trained.is_none_or(|trained| trained == vocab_size),
            "config.json: vocab_size is {}, but the weights have logits of {vocab_size} tokens",
            trained.unwrap_or_default()
        );
        let Self { config, generation, tokenizer, words } = self;
        let configs = [Some(&generation), Some(&config), config.text_config.as_deref()];
        let ends: Vec<u32> = configs
            .into_iter()
            .flatten()
            .filter_map(|config| config.eos_token_id.clone())
            .flat_map(|ids| match ids {
                OneOrMore::One(id) => vec![id],
                OneOrMore::More(ids) => ids,
            })
            .collect();
        let first = |of: fn(&Config) -> Option<u32>| configs.into_iter().flatten().find_map(of);
        let bos = first(|config| config.bos_token_id);
        let pad = first(|config| config.pad_token_id);
        for id in ends.iter().chain(&bos).chain(&pad) {
            ensure!(*id < vocab_size, "the token {id} is outside the vocabulary of {vocab_size}");
        }
        let ids: BTreeMap<&str, u32> =
            tokenizer.added_tokens.iter().map(|token| (token.content.as_str(), token.id)).collect();
        let fim = fim_by_text(|text| ids.get(text).copied().filter(|&id| id < vocab_size));
        let (before, behind) = tokenizer.post_processor.as_ref().map(around).unwrap_or_default();
        let puts = |own: Option<bool>, id: Option<u32>, found: Option<u32>| {
            id.is_some() && own.unwrap_or(found.is_some() && found == id)
        };
        let eos = ends.first().copied();
        let all_ends: BTreeSet<u32> = ends.iter().copied().collect();
        Ok(TokenizerFacts {
            vocab_size,
            bos,
            eos,
            pad,
            end_of_generation: all_ends.into_iter().collect(),
            add_bos: puts(words.add_bos_token, bos, before),
            add_eos: puts(words.add_eos_token, eos, behind),
            fim_prefix: fim.as_ref().map(|fim| fim.prefix),
            fim_suffix: fim.as_ref().map(|fim| fim.suffix),
            fim_middle: fim.as_ref().map(|fim| fim.middle),
            chat_template: words.chat_template.and_then(ChatTemplate::default_one),
        })
    }
}

/// The tokens that are put before and behind a text.
fn around(processor: &PostProcessor) -> (Option<u32>, Option<u32>) {
    let id = |piece: Option<&Piece>| match piece? {
        Piece::SpecialToken { id } => processor.special_tokens.get(id)?.ids.first().copied(),
        Piece::Sequence {} => None,
    };
    let own = (id(processor.single.first()), id(processor.single.last()));
    processor
        .processors
        .iter()
        .map(around)
        .fold(own, |(before, behind), inner| (before.or(inner.0), behind.or(inner.1)))
}

impl ChatTemplate {
    fn default_one(self) -> Option<String> {
        match self {
            Self::One(template) => Some(template),
            Self::Named(templates) => templates
                .into_iter()
                .find(|template| template.name == "default")
                .map(|template| template.template),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn folder(files: &[(&str, Value)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, content) in files {
            fs::write(folder.path().join(name), content.to_string()).unwrap();
        }
        folder
    }

    fn llama(more: &[(&str, Value)]) -> tempfile::TempDir {
        let template = json!({
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}
        });
        let tokenizer = json!({
            "added_tokens": [
                {"id": 5, "content": "<|fim_prefix|>", "special": true},
                {"id": 6, "content": "<|fim_suffix|>", "special": true},
                {"id": 7, "content": "<|fim_middle|>", "special": true}
            ],
            "post_processor": {"type": "Sequence", "processors": [{"type": "ByteLevel"}, template]},
            "model": {"type": "BPE", "vocab": {}, "merges": []}
        });
        let config = json!({
            "vocab_size": 10,
            "max_position_embeddings": 2048,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": null,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "hidden_size": 64
        });
        let mut files = vec![("config.json", config), ("tokenizer.json", tokenizer)];
        files.extend(more.iter().cloned());
        folder(&files)
    }

    #[test]
    fn the_files_say_what_is_to_be_known() {
        let read = read(llama(&[]).path()).unwrap();
        assert_eq!(read.context().unwrap(), 2048);
        assert_eq!(read.kv_numbers_per_token(), Some(2 * 3 * 2 * 16));
        let facts = read.facts(10).unwrap();
        assert_eq!((facts.bos, facts.eos, facts.pad), (Some(1), Some(2), None));
        assert_eq!(facts.end_of_generation, [2]);
        assert!(facts.add_bos && !facts.add_eos);
        assert_eq!(facts.fim().unwrap().middle, 7);
        assert_eq!(facts.chat_template, None);
    }

    #[test]
    fn the_configuration_of_generation_stands_above() {
        let folder = llama(&[
            ("generation_config.json", json!({"eos_token_id": [9, 2], "pad_token_id": 0})),
            (
                "tokenizer_config.json",
                json!({"add_bos_token": false, "chat_template": [{"name": "default", "template": "t"}]}),
            ),
        ]);
        let facts = read(folder.path()).unwrap().facts(10).unwrap();
        assert_eq!((facts.eos, facts.pad, facts.add_bos), (Some(9), Some(0), false));
        assert_eq!(facts.end_of_generation, [2, 9]);
        assert_eq!(facts.chat_template.as_deref(), Some("t"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let other = |config: Value| llama(&[("config.json", config)]);
        for (folder, words) in [
            (folder(&[]), &["no config.json"] as &[_]),
            (folder(&[("config.json", json!({}))]), &["no tokenizer.json"]),
            (other(json!([])), &["config.json"]),
            (other(json!({"vocab_size": 10})), &["max_position_embeddings"]),
            (
                other(json!({"max_position_embeddings": 8, "vocab_size": 11})),
                &["vocab_size is 11", "10 tokens"],
            ),
            (
                other(json!({"max_position_embeddings": 8, "eos_token_id": 10})),
                &["10 is outside the vocabulary"],
            ),
        ] {
            let read = || {
                let read = read(folder.path())?;
                read.context()?;
                read.facts(10)
            };
            let error = format!("{:#}", read().unwrap_err());
            for word in words {
                assert!(error.contains(word), "{word:?} is not in {error:?}");
            }
        }
    }
}
