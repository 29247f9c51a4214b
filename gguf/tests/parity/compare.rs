//! Holds a derived tokenizer, as the library runs it and as the component does, against llama.cpp's own.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use spinfer_gguf::{Derived, Header, TokenizerFacts, tokenizer, write::Writer};
use spinfer_llama::{Model, ModelParams};
use tokenizers::Tokenizer;

/// All tokenizers of one file.
pub struct Pair {
    pub derived: Tokenizer,
    /// The same, with the component's own splitting of text.
    component: spinfer::tokenizer::Tokenizer,
    pub facts: TokenizerFacts,
    pub llama: Model,
}

impl Pair {
    pub fn load(path: &Path) -> Self {
        let header = Header::read(path).unwrap();
        let Derived { tokenizer_json, facts } = tokenizer::derive(&header).unwrap();
        let derived = Tokenizer::from_str(&tokenizer_json).unwrap();
        let vocab_size = facts.vocab_size as usize;
        let json = tokenizer_json.as_bytes();
        let component = spinfer::tokenizer::Tokenizer::from_json(json, vocab_size).unwrap();
        let params = ModelParams { vocab_only: true, ..ModelParams::default() };
        let llama = Model::load(path, &params).unwrap();
        Self { derived, component, facts, llama }
    }

    pub fn write(file: &Writer) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vocabulary.gguf");
        file.write(&path).unwrap();
        Self::load(&path)
    }

    /// The derived tokenizer's ids of a text.
    pub fn ids(&self, text: &str) -> Vec<i32> {
        let encoding = self.derived.encode_fast(text, false).unwrap();
        encoding.get_ids().iter().map(|&id| id as i32).collect()
    }

    /// Asserts that all give every text the same ids, with special tokens' texts parsed or not (the component
    /// always parses them).
    pub fn assert_same_ids(&mut self, name: &str, texts: &[String]) {
        for parse_special in [true, false] {
            self.derived.set_encode_special_tokens(!parse_special);
            let mut wrong = Vec::new();
            for text in texts {
                let expected = self.llama.tokenize(text, false, parse_special).unwrap();
                let of_component = self.component.encode(text).unwrap();
                let of_component = of_component.into_iter().map(|id| id as i32).collect();
                for found in [Some(self.ids(text)), parse_special.then_some(of_component)] {
                    if let Some(found) = found.filter(|found| *found != expected) {
                        wrong.push((text, found, expected.clone()));
                    }
                }
            }
            self.derived.set_encode_special_tokens(false);
            let count = wrong.len();
            if let Some((text, found, expected)) = wrong.into_iter().min_by_key(|(t, ..)| t.len()) {
                panic!(
                    "{name}, parse_special {parse_special}: {count} of {} texts differ, as {text:?}: \
                     {:?} instead of {:?}",
                    texts.len(),
                    self.pieces(&found),
                    self.pieces(&expected),
                );
            }
        }
    }

    fn pieces(&self, ids: &[i32]) -> Vec<String> {
        ids.iter().map(|&id| self.derived.id_to_token(id as u32).unwrap_or_default()).collect()
    }

    /// Asserts that decoding what was encoded gives the text back.
    pub fn assert_round_trips<'t>(&self, name: &str, texts: impl Iterator<Item = &'t String>) {
        for text in texts {
            let encoding = self.derived.encode_fast(text.as_str(), false).unwrap();
            let back = self.derived.decode(encoding.get_ids(), false).unwrap();
            assert_eq!(&back, text, "{name}: {:?}", encoding.get_tokens());
        }
    }

    pub fn assert_same_facts(&self, name: &str) {
        let (facts, llama) = (&self.facts, &self.llama);
        let id = |id: Option<u32>| id.map(|id| id as i32);
        assert_eq!(facts.vocab_size, llama.vocab_size(), "{name}: vocab_size");
        assert_eq!(id(facts.bos), llama.bos(), "{name}: bos");
        assert_eq!(id(facts.eos), llama.eos(), "{name}: eos");
        assert_eq!(id(facts.pad), llama.pad(), "{name}: pad");
        assert_eq!(facts.add_bos, llama.add_bos(), "{name}: add_bos");
        assert_eq!(facts.add_eos, llama.add_eos(), "{name}: add_eos");
        assert_eq!(id(facts.fim_prefix), llama.fim_prefix(), "{name}: fim_prefix");
        assert_eq!(id(facts.fim_suffix), llama.fim_suffix(), "{name}: fim_suffix");
        assert_eq!(id(facts.fim_middle), llama.fim_middle(), "{name}: fim_middle");
        let ends: Vec<i32> = facts.end_of_generation.iter().map(|&id| id as i32).collect();
        assert_eq!(ends, llama.end_of_generation(), "{name}: end of generation");
    }
}

/// The file of a real model. Its absence fails a test: nothing would be tested.
pub fn model(id: &str) -> PathBuf {
    let folder = std::env::var_os("SPINFER_TEST_MODELS")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../models"), PathBuf::from);
    let path = folder.join(id).join("model.gguf");
    assert!(path.exists(), "{} is missing; `cargo xtask test` fetches it", path.display());
    path
}
