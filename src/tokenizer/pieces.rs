//! The bytes that each token of a vocabulary stands for.

use std::collections::BTreeMap;

use serde_json::Value;

use super::TokenId;

/// How a vocabulary writes bytes as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Style {
    /// Every byte is one printable character of GPT-2's alphabet.
    ByteLevel,
    /// Plain text, `▁` for a space, and `<0xNN>` for bytes that have no text.
    SentencePiece,
}

/// The bytes of all tokens, one after the other.
///
/// Text that is generated leaves control tokens out ([`Pieces::visible`]): those that the model
/// uses to mark turns and ends, such as `<|im_start|>`. What names a token shows them
/// ([`Pieces::bytes`]).
#[derive(Debug)]
pub struct Pieces {
    bytes: Vec<u8>,
    ends: Vec<u32>,
    control: Vec<bool>,
    longest: usize,
}

impl Pieces {
    /// The pieces of a tokenizer, for ids below `vocab_size`; `None` when its style is unknown.
    pub(super) fn new(tokenizer: &tokenizers::Tokenizer, vocab_size: usize) -> Option<Self> {
        let style = Style::of(tokenizer)?;
        let alphabet = byte_level_alphabet();
        let added = tokenizer.get_added_vocabulary().get_added_tokens_decoder();
        let mut pieces = Self {
            bytes: Vec::new(),
            ends: Vec::with_capacity(vocab_size),
            control: Vec::new(),
            longest: 0,
        };
        for id in 0..vocab_size as TokenId {
            let start = pieces.bytes.len();
            let token = added.get(&id);
            match (token, tokenizer.id_to_token(id)) {
                (Some(token), _) => pieces.bytes.extend_from_slice(token.content.as_bytes()),
                (None, Some(piece)) => style.decode(&piece, &alphabet, &mut pieces.bytes),
                // A place in the logits that no token takes.
                (None, None) => {}
            }
            pieces.longest = pieces.longest.max(pieces.bytes.len() - start);
            pieces.ends.push(pieces.bytes.len() as u32);
            pieces.control.push(token.is_some_and(|token| token.special));
        }
        Some(pieces)
    }

    /// All bytes of a token; none for an id outside the vocabulary.
    pub fn bytes(&self, id: TokenId) -> &[u8] {
        let id = id as usize;
        let Some(end) = self.ends.get(id) else {
            return &[];
        };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start as usize..*end as usize]
    }

    /// What a token adds to a generated text: its bytes, or nothing for a control token.
    pub fn visible(&self, id: TokenId) -> &[u8] {
        if self.is_control(id) { &[] } else { self.bytes(id) }
    }

    /// Whether the token marks something instead of being text.
    pub fn is_control(&self, id: TokenId) -> bool {
        self.control.get(id as usize).copied().unwrap_or(false)
    }

    /// The most bytes of any token.
    pub fn longest(&self) -> usize {
        self.longest
    }
}

impl Style {
    fn of(tokenizer: &tokenizers::Tokenizer) -> Option<Self> {
        let decoder = serde_json::to_value(tokenizer.get_decoder()?).ok()?;
        if any_type(&decoder, &["ByteLevel"]) {
            Some(Style::ByteLevel)
        } else if any_type(&decoder, &["ByteFallback", "Metaspace"]) {
            Some(Style::SentencePiece)
        } else {
            None
        }
    }

    fn decode(self, piece: &str, alphabet: &BTreeMap<char, u8>, bytes: &mut Vec<u8>) {
        match self {
            Style::ByteLevel => piece.chars().for_each(|c| match alphabet.get(&c) {
                Some(byte) => bytes.push(*byte),
                None => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            }),
            Style::SentencePiece => match byte_token(piece) {
                Some(byte) => bytes.push(byte),
                None => bytes.extend_from_slice(piece.replace('▁', " ").as_bytes()),
            },
        }
    }
}

/// The byte of a piece like `<0x0A>`.
fn byte_token(piece: &str) -> Option<u8> {
    let hex = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    let digits = hex.len() == 2 && hex.bytes().all(|digit| digit.is_ascii_hexdigit());
    digits.then(|| u8::from_str_radix(hex, 16).ok())?
}

/// Byte-level vocabularies write printable Latin-1 bytes as themselves, and the others, in order,
/// as the characters from U+0100 on.
pub(super) fn byte_level_alphabet() -> BTreeMap<char, u8> {
    let mut moved = 0x100;
    (0..=u8::MAX)
        .map(|byte| match byte {
            b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => (char::from(byte), byte),
            _ => {
                moved += 1;
                (char::from_u32(moved - 1).expect("a letter of Latin Extended"), byte)
            }
        })
        .collect()
}

/// Whether the `type` of this part of a `tokenizer.json`, or of any part inside it, is among `types`.
fn any_type(part: &Value, types: &[&str]) -> bool {
    parts(part).any(|found| types.contains(&found))
}

/// Whether the `type` of this part and of all parts inside it are among `types`.
pub(super) fn all_types(part: &Value, types: &[&str]) -> bool {
    parts(part).all(|found| types.contains(&found))
}

/// The types of a part, and of those in its list, if it is a sequence.
fn parts(part: &Value) -> impl Iterator<Item = &str> {
    let inner =
        ["decoders", "normalizers"].iter().filter_map(|key| part.get(key)?.as_array()).flatten();
    std::iter::once(part).chain(inner).filter_map(|part| part.get("type")?.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn the_alphabet_is_the_known_one() {
        let alphabet = byte_level_alphabet();
        assert_eq!(alphabet.len(), 256);
        for (letter, byte) in
            [('a', b'a'), ('Ġ', b' '), ('Ċ', b'\n'), ('ĉ', b'\t'), ('č', b'\r'), ('Ń', 0xad)]
        {
            assert_eq!(alphabet[&letter], byte, "{letter}");
        }
    }

    #[test]
    fn byte_level_pieces_are_bytes() {
        let tokenizer = testing::byte_level();
        let pieces = tokenizer.pieces();
        let ids = tokenizer.encode("é").unwrap();
        assert_eq!(ids.iter().map(|id| pieces.bytes(*id)).collect::<Vec<_>>(), [&[0xc3], &[0xa9]]);
        assert_eq!(pieces.bytes(u32::MAX), b"");
        assert_eq!(pieces.longest(), "<|endoftext|>".len());
    }

    #[test]
    fn fallback_pieces_are_text_or_bytes() {
        let tokenizer = testing::byte_fallback();
        let pieces = tokenizer.pieces();
        let ids = tokenizer.encode("é hello").unwrap();
        assert_eq!(
            ids.iter().map(|id| pieces.bytes(*id)).collect::<Vec<_>>(),
            [&b"\xc3"[..], b"\xa9", b" hello"]
        );
    }

    #[test]
    fn byte_tokens_have_one_form() {
        assert_eq!(byte_token("<0x0A>"), Some(10));
        for other in ["<0x0>", "<0x0AB>", "<0xZZ>", "0x0A", "<0x+A>", ""] {
            assert_eq!(byte_token(other), None, "{other}");
        }
    }

    #[test]
    fn places_without_a_token_are_empty() {
        let json = testing::byte_level_json();
        let tokenizer = crate::tokenizer::Tokenizer::from_json(json.as_bytes(), 5000).unwrap();
        assert_eq!(tokenizer.pieces().bytes(4999), b"");
        assert!(!tokenizer.pieces().is_control(4999));
    }
}
