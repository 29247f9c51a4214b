//! The tokenizer that a GGUF file describes, made into a Hugging Face `tokenizer.json` that gives
//! the same ids as llama.cpp.
//!
//! [`facts`] reads what is to be known about the vocabulary whatever tokenizes; [`derive()`] makes
//! the tokenizer too. A user who puts a `tokenizer.json` of their own beside the weights needs only the
//! facts. BOS and EOS are never added by the derived tokenizer: who encodes adds them.

mod attributes;
mod byte_level;
mod facts;
mod json;
mod pre;
mod sentence_piece;
mod vocabulary;

use crate::header::{Header, WrongType};

pub use facts::{TokenizerFacts, fim_by_text};
use pre::Text;
use vocabulary::{Kind, Vocabulary};

/// The most bytes that a token's text may have; those of real vocabularies stay below 600.
const LONGEST_TOKEN: usize = 1 << 12;

/// A tokenizer and what is to be known about its vocabulary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Derived {
    /// The content of a `tokenizer.json`, for the crate `tokenizers` with its fancy-regex engine.
    pub tokenizer_json: String,
    /// Special tokens and the like.
    pub facts: TokenizerFacts,
}

/// Why a vocabulary can't be used. Each is a sentence without the file's name.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum TokenizerError {
    /// A needed key is absent.
    #[error("it lacks the key {0}")]
    Missing(&'static str),
    /// A value of the wrong type.
    #[error(transparent)]
    WrongType(#[from] WrongType),
    /// The file was made without a vocabulary.
    #[error("it has no vocabulary (tokenizer.ggml.model is {0:?})")]
    NoVocabulary(String),
    /// llama.cpp can't load the file either.
    #[error("its tokenizer.ggml.model is {0:?}, a tokenizer that llama.cpp doesn't know")]
    UnknownModel(String),
    /// A tokenizer that this crate can't make into a `tokenizer.json`.
    #[error(
        "its tokenizer ({key} is {name:?}) can't be converted; put the model's own tokenizer.json \
         beside the weights, and it will be used"
    )]
    Unsupported {
        /// The key that tells the tokenizer.
        key: &'static str,
        /// Its value.
        name: String,
    },
    /// A vocabulary that the library can't express.
    #[error(
        "its tokenizer can't be converted, for {0}; put the model's own tokenizer.json beside the \
         weights, and it will be used"
    )]
    Inexpressible(String),
    /// An array with an entry for each token has another length.
    #[error("its key {key} has {found} entries for {tokens} tokens")]
    PerToken {
        /// The key.
        key: &'static str,
        /// Entries that the array has.
        found: usize,
        /// Tokens in the vocabulary.
        tokens: usize,
    },
    /// Two tokens with one text: llama.cpp aborts.
    #[error("its tokens {first} and {second} have the same text, {text:?}")]
    Duplicate {
        /// The text.
        text: String,
        /// The lower id.
        first: u32,
        /// The higher id.
        second: u32,
    },
    /// A text that no vocabulary has, and that would take very long to look at.
    #[error("its token {id} is {bytes} bytes long, more than {LONGEST_TOKEN}")]
    LongToken {
        /// The token.
        id: u32,
        /// The length of its text.
        bytes: usize,
    },
    /// A vocabulary that can't spell every text: llama.cpp aborts when it meets such a one.
    #[error("its vocabulary has no token for the byte {0:#04x}")]
    MissingByte(u8),
    /// A special token outside of the vocabulary.
    #[error("its key {key} is {id}, and there are {tokens} tokens")]
    SpecialToken {
        /// The key.
        key: &'static str,
        /// The id it gives.
        id: u64,
        /// Tokens in the vocabulary.
        tokens: usize,
    },
    /// A score that orders nothing.
    #[error("its token {0} has a score that is not a number")]
    Score(u32),
}

impl TokenizerError {
    /// Whether a `tokenizer.json` from the user would make the model usable.
    pub fn own_tokenizer_helps(&self) -> bool {
        matches!(self, Self::Unsupported { .. } | Self::Inexpressible(_))
    }
}

/// Reads what is to be known about the vocabulary, and checks it for what makes llama.cpp abort.
///
/// # Errors
/// When llama.cpp could not use the vocabulary.
pub fn facts(header: &Header) -> Result<TokenizerFacts, TokenizerError> {
    let mut vocabulary = Vocabulary::read(header)?;
    TokenizerFacts::detect(header, &mut vocabulary)
}

/// Whether the file names a pre-tokenizer that llama.cpp doesn't know and refuses. With a
/// `tokenizer.json` beside the weights it can be loaded all the same, if llama.cpp is told another.
pub fn has_unknown_pre(header: &Header) -> bool {
    let string = |key| header.string(key).ok().flatten();
    string("tokenizer.ggml.model") == Some("gpt2")
        && pre::by_name(string("tokenizer.ggml.pre").unwrap_or_default()).is_none()
}

/// Makes the tokenizer, and reads what is to be known about the vocabulary.
///
/// # Errors
/// As [`facts`], and when the tokenizer can't be made into a `tokenizer.json` of the same behaviour
/// ([`TokenizerError::own_tokenizer_helps`]).
pub fn derive(header: &Header) -> Result<Derived, TokenizerError> {
    let mut vocabulary = Vocabulary::read(header)?;
    let facts = TokenizerFacts::detect(header, &mut vocabulary)?;
    attributes::strip_spaces(header, &mut vocabulary)?;
    let tokenizer = match vocabulary.kind {
        Kind::SentencePiece => sentence_piece::tokenizer(header, &vocabulary)?,
        Kind::Bpe(pre) => match pre.text {
            Text::Bytes(splits) => byte_level::tokenizer(header, &vocabulary, pre, splits)?,
            Text::Escaped { .. } => sentence_piece::with_merges(header, &vocabulary, pre)?,
            Text::Unsupported => return Err(vocabulary.unsupported_pre(header)),
        },
        Kind::Other => return Err(vocabulary.unsupported_model()),
    };
    Ok(Derived { tokenizer_json: tokenizer.to_json(), facts })
}
