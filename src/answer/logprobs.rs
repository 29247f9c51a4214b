//! The object `logprobs` of a choice, in both shapes: the list `content`, and the older four lists
//! side by side.

use std::borrow::Cow;
use std::fmt::Write as _;

use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};

use crate::generation::{Score, Token};
use crate::tokenizer::{Pieces, TokenId};

/// The log-probabilities of tokens.
#[derive(Debug, Default, Serialize)]
pub(super) struct Logprobs<'a> {
    /// Each token that has a log-probability: not a prompt's first one.
    content: Vec<Content<'a>>,
    /// No token is a refusal here.
    refusal: Option<Refusal>,
    tokens: Vec<Key<'a>>,
    token_logprobs: Vec<Option<f32>>,
    top_logprobs: Vec<Option<TopMap<'a>>>,
    text_offset: Vec<usize>,
}

#[derive(Debug, Serialize, Deserialize)]
enum Refusal {}

#[derive(Debug, Serialize)]
struct Content<'a> {
    token: Key<'a>,
    bytes: &'a [u8],
    logprob: f32,
    top_logprobs: Vec<Alternative<'a>>,
}

#[derive(Debug, Serialize)]
struct Alternative<'a> {
    token: Key<'a>,
    bytes: &'a [u8],
    logprob: f32,
}

/// A token as text: its exact piece or, where that is no text by itself, its bytes.
type Key<'a> = Cow<'a, str>;

/// Alternatives as a map from pieces. Where two tokens have the same piece, the actual token's own
/// value counts, otherwise the higher.
#[derive(Debug)]
struct TopMap<'a>(Vec<(Key<'a>, f32)>);

impl Serialize for TopMap<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, logprob) in &self.0 {
            map.serialize_entry(key, logprob)?;
        }
        map.end()
    }
}

impl<'a> TopMap<'a> {
    fn new(actual: TokenId, score: &Score, pieces: &'a Pieces) -> Self {
        let own = key(pieces, actual);
        let mut map = Vec::<(Key<'a>, f32)>::new();
        // The likeliest come first.
        for (id, logprob) in &score.top {
            let key = key(pieces, *id);
            let taken = key == own && *id != actual || map.iter().any(|(other, _)| *other == key);
            if !taken {
                map.push((key, *logprob));
            }
        }
        Self(map)
    }
}

impl<'a> Logprobs<'a> {
    /// The object for the tokens that have scores; `None` when there are none.
    pub fn new(tokens: &[Token], pieces: &'a Pieces) -> Option<Self> {
        let mut object = Self::default();
        for token in tokens {
            let Some(score) = &token.score else { continue };
            object.tokens.push(key(pieces, token.id));
            object.token_logprobs.push(score.logprob);
            object.text_offset.push(score.offset);
            let Some(logprob) = score.logprob else {
                object.top_logprobs.push(None);
                continue;
            };
            object.top_logprobs.push(Some(TopMap::new(token.id, score, pieces)));
            let alternatives = score.top.iter().map(|(id, logprob)| Alternative {
                token: key(pieces, *id),
                bytes: pieces.bytes(*id),
                logprob: *logprob,
            });
            object.content.push(Content {
                token: key(pieces, token.id),
                bytes: pieces.bytes(token.id),
                logprob,
                top_logprobs: alternatives.collect(),
            });
        }
        (!object.tokens.is_empty()).then_some(object)
    }
}

fn key(pieces: &Pieces, token: TokenId) -> Key<'_> {
    let bytes = pieces.bytes(token);
    match std::str::from_utf8(bytes) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => {
            let mut text = String::from("bytes:");
            for byte in bytes {
                // Writing to a string can't fail.
                let _ = write!(text, "\\x{byte:02x}");
            }
            Cow::Owned(text)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{self, byte};

    fn object(tokens: &[Token]) -> Value {
        let tokenizer = testing::byte_level();
        serde_json::to_value(Logprobs::new(tokens, tokenizer.pieces())).unwrap()
    }

    fn token(id: TokenId, logprob: Option<f32>, top: &[(TokenId, f32)]) -> Token {
        let score = Score { offset: 4, logprob, top: top.to_vec() };
        Token { id, is_generated: true, score: Some(score) }
    }

    #[test]
    fn both_shapes_say_the_same() {
        let tokens = [
            token(byte(b'a'), None, &[]),
            token(byte(b'b'), Some(-0.5), &[(byte(b'c'), -0.25), (byte(b'b'), -0.5)]),
        ];
        assert_eq!(
            object(&tokens),
            json!({
                "content": [{"token": "b", "bytes": [98], "logprob": -0.5, "top_logprobs": [
                    {"token": "c", "bytes": [99], "logprob": -0.25},
                    {"token": "b", "bytes": [98], "logprob": -0.5},
                ]}],
                "refusal": null,
                "tokens": ["a", "b"],
                "token_logprobs": [null, -0.5],
                "top_logprobs": [null, {"c": -0.25, "b": -0.5}],
                "text_offset": [4, 4],
            })
        );
        assert_eq!(object(&[]), Value::Null);
    }

    #[test]
    fn floats_are_written_as_short_as_they_can_be() {
        let tokens = [token(byte(b'a'), Some(-0.1), &[(byte(b'a'), -0.1)])];
        let tokenizer = testing::byte_level();
        let text = serde_json::to_string(&Logprobs::new(&tokens, tokenizer.pieces())).unwrap();
        assert!(text.contains(r#""token_logprobs":[-0.1]"#), "{text}");
        assert!(text.contains(r#""top_logprobs":[{"a":-0.1}]"#), "{text}");
    }

    #[test]
    fn what_is_no_text_is_written_in_bytes() {
        let tokens = [token(byte(0xe2), Some(-1.0), &[(byte(0xe2), -1.0)])];
        let object = object(&tokens);
        assert_eq!(object["tokens"], json!(["bytes:\\xe2"]));
        assert_eq!(object["top_logprobs"], json!([{"bytes:\\xe2": -1.0}]));
        assert_eq!(object["content"][0]["bytes"], json!([0xe2]));
    }

    /// The places 290 to 292 of the small vocabulary have no token: their pieces are all empty.
    #[test]
    fn one_of_equal_pieces_is_in_the_map() {
        let top = [(290, -0.25), (291, -0.5), (292, -0.75)];
        let actual = object(&[token(291, Some(-0.5), &top)]);
        assert_eq!(actual["top_logprobs"], json!([{"": -0.5}]));
        let top = [(290, -0.25), (291, -0.5), (byte(b'a'), -0.75)];
        let other = object(&[token(byte(b'a'), Some(-0.75), &top)]);
        assert_eq!(other["top_logprobs"], json!([{"": -0.25, "a": -0.75}]));
    }
}
