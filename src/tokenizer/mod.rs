//! Text to token ids, and token ids to bytes.
//!
//! Special tokens and merges are the `tokenizers` library's; text is split into words here where all steps
//! of that are known ([`words`]). Decoding is our own: the library's works on whole
//! sequences and replaces what isn't UTF-8, while a stream needs the exact bytes of each token.

mod pieces;
mod text;
mod words;

use std::convert::Infallible;

use tokenizers::{AddedToken, Model, ModelWrapper, OffsetReferential, OffsetType};

pub use pieces::Pieces;
pub use text::Utf8Stream;
use words::Words;

/// An index into a model's vocabulary.
pub type TokenId = u32;

/// Texts that reach the parts of a tokenizer that are built at their first use, or cached.
const WARM_UP: &[&str] = &[
    "The quick brown fox jumps over 13 lazy dogs, didn't it? It's 4.5% (or 1/2)!\n\n",
    "fn main() {\n\tlet x = vec![0_u8; 42];\r\n    println!(\"{x:?}\");\n}\n",
    "Ünïcödé, naïve café; Привет, мир; 你好，世界。日本語テキスト 한국어 مرحبا हिन्दी",
    "🦀👩‍👩‍👧‍👦🏳️‍🌈 … — “quotes”\u{a0}\u{200b}\u{fffd}\0",
    "<|im_start|>user\nhi<|im_end|>\n<s>[INST] x [/INST]</s><bos><start_of_turn>",
    "                          \t\t\t\n\n\n\n                                        ",
];

/// Every three characters of those that patterns tell apart in English text and in code: automata learn a
/// transition when they first take it.
fn all_in_turn() -> String {
    const TOLD_APART: &str = "aestrvmldSTRVMLD1'!./\"(_ \n\r\t";
    let all = || TOLD_APART.chars();
    all().flat_map(|a| all().flat_map(move |b| all().flat_map(move |c| [a, b, c]))).collect()
}

/// Why a tokenizer can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The file isn't one that the library reads.
    #[error("tokenizer.json: {0}")]
    File(#[source] tokenizers::Error),
    /// Pieces are written in a way that is unknown here.
    #[error("tokenizer.json: the decoder is neither byte-level nor like SentencePiece's")]
    Decoder,
    /// A text could not be encoded.
    #[error("the prompt could not be tokenized: {0}")]
    Encode(#[source] tokenizers::Error),
}

/// One model's tokenizer.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    pieces: Pieces,
    /// The library's way of splitting text, where it is known here.
    words: Option<Words>,
    /// No token stands for more bytes of text than this. `None`: no such limit is known.
    most_bytes_per_token: Option<usize>,
}

impl Tokenizer {
    /// Reads a `tokenizer.json` for a model whose logits have `vocab_size` places.
    pub fn from_json(json: &[u8], vocab_size: usize) -> Result<Self, TokenizerError> {
        let mut inner = tokenizers::Tokenizer::from_bytes(json).map_err(TokenizerError::File)?;
        // Settings of training: a prompt must neither be cut nor filled up.
        inner.with_truncation(None).map_err(TokenizerError::File)?;
        inner.with_padding(None);
        let pieces = Pieces::new(&inner, vocab_size).ok_or(TokenizerError::Decoder)?;
        let most_bytes_per_token = most_bytes_per_token(&inner, &pieces);
        let words = inner.get_pre_tokenizer().and_then(Words::new);
        Ok(Self { inner, pieces, words, most_bytes_per_token })
    }

    /// Runs the tokenizer over a few texts, so that what it builds lazily is there.
    pub fn warm_up(&self) {
        for text in WARM_UP {
            // A text that it can't encode warms nothing; a request will tell.
            let _ = self.encode(text);
        }
        if let Some(words) = &self.words {
            let Ok(()) = words.each(&all_in_turn(), |_| Ok::<_, Infallible>(()));
        }
    }

    /// The ids of a text. The text of a special token becomes that token; nothing is added.
    pub fn encode(&self, text: &str) -> Result<Vec<TokenId>, TokenizerError> {
        let Some(words) = &self.words else {
            let encoding = self.inner.encode_fast(text, false).map_err(TokenizerError::Encode)?;
            return Ok(encoding.get_ids().to_vec());
        };
        let (added, model) = (self.inner.get_added_vocabulary(), self.inner.get_model());
        let parts = added.extract_and_normalize(self.inner.get_normalizer(), text);
        let mut ids = Vec::with_capacity(text.len() / 4);
        for (part, _, special) in parts.get_splits(OffsetReferential::Original, OffsetType::None) {
            match special {
                Some(tokens) => ids.extend(tokens.iter().map(|token| token.id)),
                None => words
                    .each(part, |word| {
                        ids.extend(model.tokenize(word)?.iter().map(|token| token.id));
                        Ok(())
                    })
                    .map_err(TokenizerError::Encode)?,
            }
        }
        Ok(ids)
    }

    /// The bytes that tokens stand for, control tokens included.
    pub fn decode(&self, tokens: &[TokenId]) -> Vec<u8> {
        tokens.iter().flat_map(|token| self.pieces.bytes(*token)).copied().collect()
    }

    /// A number of tokens that `text` has at least, found from its length alone.
    pub fn fewest_tokens(&self, text: &str) -> usize {
        self.most_bytes_per_token.map_or(0, |most| text.len().div_ceil(most))
    }

    /// What each token stands for.
    pub fn pieces(&self) -> &Pieces {
        &self.pieces
    }
}

/// A limit holds only where tokens stand for text of their own length: not where the normalizer
/// shortens text, where unknown text of any length becomes one token, or where an added token takes
/// the whitespace around it.
fn most_bytes_per_token(tokenizer: &tokenizers::Tokenizer, pieces: &Pieces) -> Option<usize> {
    let fuses_unknown = match tokenizer.get_model() {
        ModelWrapper::BPE(bpe) => bpe.unk_token.is_some() && bpe.fuse_unk && !bpe.byte_fallback,
        _ => true,
    };
    let takes_space = |token: &AddedToken| token.lstrip || token.rstrip;
    let added = tokenizer.get_added_vocabulary().get_added_tokens_decoder();
    let keeps_length = match tokenizer.get_normalizer() {
        None => true,
        Some(normalizer) => serde_json::to_value(normalizer).is_ok_and(|normalizer| {
            pieces::all_types(&normalizer, &["Sequence", "Prepend", "Replace"])
        }),
    };
    let limited = !fuses_unknown && keeps_length && !added.values().any(takes_space);
    limited.then(|| pieces.longest().max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, byte_fallback, byte_level};

    #[test]
    fn text_survives_a_round_trip_in_both_styles() {
        for tokenizer in [byte_level(), byte_fallback()] {
            for text in WARM_UP {
                let ids = tokenizer.encode(text).unwrap();
                let bytes = ids
                    .iter()
                    .flat_map(|id| tokenizer.pieces().bytes(*id))
                    .copied()
                    .collect::<Vec<_>>();
                assert_eq!(String::from_utf8(bytes).unwrap(), *text);
            }
        }
    }

    /// With tokens of all kinds in the text, and a normalizer, ids are those of the library alone.
    #[test]
    fn own_words_give_the_library_s_ids() {
        let mut json: serde_json::Value =
            serde_json::from_str(&testing::byte_level_json()).unwrap();
        json["normalizer"] = serde_json::json!({"type": "NFC"});
        let added = [("<left>", true, false), ("<right>", false, true), ("plain", false, false)];
        for (place, (content, lstrip, rstrip)) in added.into_iter().enumerate() {
            let token = serde_json::json!({"id": 270 + place, "content": content, "single_word": content == "plain",
                "lstrip": lstrip, "rstrip": rstrip, "normalized": content == "plain", "special": false});
            json["added_tokens"].as_array_mut().unwrap().push(token);
        }
        let tokenizer = Tokenizer::from_json(json.to_string().as_bytes(), 300).unwrap();
        assert!(tokenizer.words.is_some());
        let texts = [
            "",
            " ",
            "a  <left>  b",
            "a  <right>  b",
            "plain explain plain.",
            "<left><right>",
            "hello <|im_end|> hello",
            "<|im_start|><|im_end|>",
            "e\u{301}  hello\n\n <|im_end|>\n",
            "x<|im_end|",
        ];
        for text in texts.iter().chain(WARM_UP) {
            let expected = tokenizer.inner.encode_fast(*text, false).unwrap();
            assert_eq!(tokenizer.encode(text).unwrap(), expected.get_ids(), "{text:?}");
        }
    }

    #[test]
    fn special_tokens_are_parsed_in_text() {
        let tokenizer = byte_level();
        let ids = tokenizer.encode("a<|im_end|>").unwrap();
        assert_eq!(ids.len(), 2);
        assert_eq!(tokenizer.pieces().bytes(ids[1]), b"<|im_end|>");
        assert_eq!(tokenizer.pieces().visible(ids[1]), b"");
    }

    #[test]
    fn merges_are_used() {
        assert_eq!(byte_level().encode("hello").unwrap().len(), 1);
        assert_eq!(byte_fallback().encode(" hello").unwrap().len(), 1);
    }

    #[test]
    fn the_lower_bound_is_one() {
        let tokenizer = byte_level();
        for text in WARM_UP {
            assert!(tokenizer.fewest_tokens(text) <= tokenizer.encode(text).unwrap().len());
        }
        assert_eq!(tokenizer.fewest_tokens(""), 0);
        assert!(tokenizer.fewest_tokens(&"a".repeat(1_000_000)) > 50_000);
    }

    #[test]
    fn other_decoders_are_refused() {
        let json = r#"{"version":"1.0","model":{"type":"WordLevel","vocab":{"a":0},"unk_token":"a"},
            "decoder":{"type":"WordPiece","prefix":"_","cleanup":true}}"#;
        assert!(matches!(Tokenizer::from_json(json.as_bytes(), 1), Err(TokenizerError::Decoder)));
        assert!(matches!(Tokenizer::from_json(b"{}", 1), Err(TokenizerError::File(_))));
    }
}
