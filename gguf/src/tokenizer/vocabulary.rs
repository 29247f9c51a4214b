//! The vocabulary as the file has it: texts, types, and which tokenizer it belongs to.

use std::borrow::Cow;
use std::collections::HashMap;

use super::pre::{self, Pre};
use super::{LONGEST_TOKEN, TokenizerError};
use crate::header::Header;
use crate::value::{Array, Strings, Value};

pub(super) const MODEL: &str = "tokenizer.ggml.model";
pub(super) const PRE: &str = "tokenizer.ggml.pre";
pub(super) const TOKENS: &str = "tokenizer.ggml.tokens";
pub(super) const TYPES: &str = "tokenizer.ggml.token_type";
pub(super) const SCORES: &str = "tokenizer.ggml.scores";
pub(super) const MERGES: &str = "tokenizer.ggml.merges";

/// What a token is, in the sets that llama.cpp keeps for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Attributes {
    pub unknown: bool,
    pub control: bool,
    pub user_defined: bool,
    pub byte: bool,
    /// As a special token it takes the spaces behind it along.
    pub takes_spaces_after: bool,
}

impl Attributes {
    /// The attributes of the type that a number in the file stands for.
    fn of_type(number: u64) -> Self {
        let none = Self::default();
        match number {
            2 => Self { unknown: true, ..none },
            3 => Self { control: true, ..none },
            4 => Self { user_defined: true, ..none },
            6 => Self { byte: true, ..none },
            _ => none,
        }
    }

    /// Whether the token's text is cut out of a text before anything else looks at it.
    pub(super) fn cut_out(self) -> bool {
        self.unknown || self.control || self.user_defined
    }
}

/// The tokenizer that the vocabulary is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// SentencePiece with scores and byte fallback.
    SentencePiece,
    /// Byte-pair encoding with a list of merges.
    Bpe(Pre),
    /// One that llama.cpp knows and this crate doesn't.
    Other,
}

pub(super) struct Vocabulary<'h> {
    pub kind: Kind,
    /// `tokenizer.ggml.model`.
    pub model: &'h str,
    /// The tokens' texts, by id.
    pub texts: Vec<Cow<'h, str>>,
    /// Their attributes, by id.
    pub attributes: Vec<Attributes>,
    /// The ids of the texts.
    ids: HashMap<Cow<'h, str>, u32>,
}

impl<'h> Vocabulary<'h> {
    pub(super) fn read(header: &'h Header) -> Result<Self, TokenizerError> {
        let model = header.string(MODEL)?.ok_or(TokenizerError::Missing(MODEL))?;
        let kind = kind(header, model)?;
        let tokens = strings(header, TOKENS)?.ok_or(TokenizerError::Missing(TOKENS))?;
        if tokens.is_empty() {
            return Err(TokenizerError::NoVocabulary(model.to_owned()));
        }
        let texts: Vec<_> =
            tokens.iter().enumerate().map(|(id, text)| seen_by_llama(id, text)).collect();
        let ids = index(&texts)?;
        let attributes = attributes(header, texts.len())?;
        let vocabulary = Self { kind, model, texts, attributes, ids };
        if kind == Kind::SentencePiece {
            vocabulary.check_bytes()?;
        }
        Ok(vocabulary)
    }

    /// How many tokens there are.
    pub(super) fn len(&self) -> usize {
        self.texts.len()
    }

    /// The id of the token with that text.
    pub(super) fn id(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
    }

    /// The attributes of a token that is known to be there.
    pub(super) fn attributes_mut(&mut self, id: u32) -> &mut Attributes {
        &mut self.attributes[id as usize]
    }

    pub(super) fn unsupported_model(&self) -> TokenizerError {
        TokenizerError::Unsupported { key: MODEL, name: self.model.to_owned() }
    }

    pub(super) fn unsupported_pre(&self, header: &Header) -> TokenizerError {
        let name = header.string(PRE).ok().flatten().unwrap_or_default();
        TokenizerError::Unsupported { key: PRE, name: name.to_owned() }
    }

    /// llama.cpp spells what is not in a SentencePiece vocabulary by `<0x..>`, or by a token that is
    /// the byte itself, and ends the process when it finds neither.
    pub(super) fn check_bytes(&self) -> Result<(), TokenizerError> {
        let spelled = |byte: u8| {
            self.ids.contains_key(byte_token(byte).as_str())
                || byte.is_ascii()
                    && self.ids.contains_key(char::from(byte).encode_utf8(&mut [0; 4]) as &str)
        };
        match (0..=u8::MAX).find(|&byte| !spelled(byte)) {
            Some(byte) => Err(TokenizerError::MissingByte(byte)),
            None => Ok(()),
        }
    }
}

/// The text of the token that stands for a byte in vocabularies of characters.
pub(super) fn byte_token(byte: u8) -> String {
    format!("<0x{byte:02X}>")
}

fn kind(header: &Header, model: &str) -> Result<Kind, TokenizerError> {
    Ok(match model {
        "none" | "no_vocab" => return Err(TokenizerError::NoVocabulary(model.to_owned())),
        "llama" => Kind::SentencePiece,
        "gpt2" => {
            let name = header.string(PRE)?.unwrap_or_default();
            Kind::Bpe(pre::by_name(name).unwrap_or(pre::UNKNOWN))
        }
        "gemma4" => Kind::Bpe(pre::by_name("gemma4").expect("the name is known")),
        "bert" | "t5" | "rwkv" | "plamo2" | "hybriddna" | "whitespace" | "test" => Kind::Other,
        _ => return Err(TokenizerError::UnknownModel(model.to_owned())),
    })
}

/// A text as llama.cpp sees it, which takes a zero byte for its end.
pub(super) fn to_nul(text: &str) -> &str {
    text.split_once('\0').map_or(text, |(before, _)| before)
}

/// llama.cpp gives tokens without text one, so that no two are the same.
fn seen_by_llama(id: usize, text: &str) -> Cow<'_, str> {
    match to_nul(text) {
        "" => Cow::Owned(format!("[EMPTY_{id}]")),
        text => Cow::Borrowed(text),
    }
}

fn index<'h>(texts: &[Cow<'h, str>]) -> Result<HashMap<Cow<'h, str>, u32>, TokenizerError> {
    let mut ids = HashMap::with_capacity(texts.len());
    for (id, text) in (0u32..).zip(texts) {
        if text.len() > LONGEST_TOKEN {
            return Err(TokenizerError::LongToken { id, bytes: text.len() });
        }
        if let Some(first) = ids.insert(text.clone(), id) {
            let text = text.to_string();
            return Err(TokenizerError::Duplicate { text, first, second: id });
        }
    }
    Ok(ids)
}

fn attributes(header: &Header, tokens: usize) -> Result<Vec<Attributes>, TokenizerError> {
    let Some(types) = header.array(TYPES)? else {
        return Ok(vec![Attributes::default(); tokens]);
    };
    check_length(TYPES, types, tokens)?;
    // Negative and odd numbers are types that nothing is known about.
    Ok((0..tokens).map(|id| Attributes::of_type(types.get_u64(id).unwrap_or(0))).collect())
}

/// An array of strings.
pub(super) fn strings<'h>(
    header: &'h Header,
    key: &'static str,
) -> Result<Option<&'h Strings>, TokenizerError> {
    let strings = header.typed(key, "an array of strings", |value| match value {
        Value::Array(Array::String(strings)) => Some(strings),
        _ => None,
    })?;
    Ok(strings)
}

pub(super) fn check_length(
    key: &'static str,
    array: &Array,
    tokens: usize,
) -> Result<(), TokenizerError> {
    match array.len() {
        found if found == tokens => Ok(()),
        found => Err(TokenizerError::PerToken { key, found, tokens }),
    }
}
