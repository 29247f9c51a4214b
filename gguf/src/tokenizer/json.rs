//! The parts of a `tokenizer.json` that are needed here, written straight from the vocabulary.

use std::borrow::Cow;

use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use serde_json::{Value, json};

use super::vocabulary::Vocabulary;

/// A tokenizer with a byte-pair model.
pub(super) struct Tokenizer<'v> {
    pub vocabulary: &'v Vocabulary<'v>,
    pub normalizer: Value,
    pub pre_tokenizer: Value,
    pub decoder: Value,
    pub model: Bpe<'v>,
}

/// The model, but for its vocabulary.
#[derive(Default)]
pub(super) struct Bpe<'v> {
    /// Pairs of texts to merge, the most urgent first. All halves and wholes are tokens.
    pub merges: Vec<(&'v str, &'v str)>,
    /// A word that is a token is taken whole.
    pub ignore_merges: bool,
    /// Characters that are no tokens are spelled by their bytes.
    pub byte_fallback: bool,
    /// What stands for a character that can't be spelled.
    pub unknown: Option<&'v str>,
}

impl Tokenizer<'_> {
    pub(super) fn to_json(&self) -> String {
        serde_json::to_string(self).expect("texts and numbers always serialize")
    }
}

impl Serialize for Tokenizer<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("version", "1.0")?;
        map.serialize_entry("truncation", &Value::Null)?;
        map.serialize_entry("padding", &Value::Null)?;
        map.serialize_entry("added_tokens", &added_tokens(self.vocabulary))?;
        map.serialize_entry("normalizer", &self.normalizer)?;
        map.serialize_entry("pre_tokenizer", &self.pre_tokenizer)?;
        map.serialize_entry("post_processor", &Value::Null)?;
        map.serialize_entry("decoder", &self.decoder)?;
        map.serialize_entry("model", &Model { texts: &self.vocabulary.texts, bpe: &self.model })?;
        map.end()
    }
}

struct Model<'v> {
    texts: &'v [Cow<'v, str>],
    bpe: &'v Bpe<'v>,
}

impl Serialize for Model<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("type", "BPE")?;
        map.serialize_entry("dropout", &Value::Null)?;
        map.serialize_entry("unk_token", &self.bpe.unknown)?;
        map.serialize_entry("continuing_subword_prefix", &Value::Null)?;
        map.serialize_entry("end_of_word_suffix", &Value::Null)?;
        map.serialize_entry("fuse_unk", &self.bpe.byte_fallback)?;
        map.serialize_entry("byte_fallback", &self.bpe.byte_fallback)?;
        map.serialize_entry("ignore_merges", &self.bpe.ignore_merges)?;
        map.serialize_entry("vocab", &Ids(self.texts))?;
        map.serialize_entry("merges", &Pairs(&self.bpe.merges))?;
        map.end()
    }
}

struct Ids<'v>(&'v [Cow<'v, str>]);

impl Serialize for Ids<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().zip(0u32..))
    }
}

struct Pairs<'v>(&'v [(&'v str, &'v str)]);

impl Serialize for Pairs<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.0.len()))?;
        for pair in self.0 {
            list.serialize_element(pair)?;
        }
        list.end()
    }
}

/// The tokens that are cut out of a text before anything else looks at it. Those that a user may
/// have defined are text like any other when decoding; the rest are special.
fn added_tokens(vocabulary: &Vocabulary<'_>) -> Vec<Value> {
    let cut_out = |id: &usize| vocabulary.attributes[*id].cut_out();
    let token = |id: usize| {
        let attributes = vocabulary.attributes[id];
        json!({
            "id": id,
            "content": vocabulary.texts[id],
            "single_word": false,
            "lstrip": false,
            "rstrip": attributes.takes_spaces_after,
            "normalized": false,
            "special": attributes.control || attributes.unknown,
        })
    };
    (0..vocabulary.len()).filter(cut_out).map(token).collect()
}
