//! Vocabularies of characters, with `▁` for a space and a token for each byte: SentencePiece's, and
//! the byte-pair vocabularies made in its image.

use serde_json::{Value, json};

use super::TokenizerError;
use super::byte_level::{isolate, merges};
use super::json::{Bpe, Tokenizer};
use super::pre::{Pre, Text};
use super::vocabulary::{SCORES, Vocabulary, byte_token, check_length};
use crate::header::Header;
use crate::value::Array;

const ADD_SPACE_PREFIX: &str = "tokenizer.ggml.add_space_prefix";
const SPACE: &str = "▁";

/// SentencePiece merges the pair whose union scores best, so the scores order all possible merges.
pub(super) fn tokenizer<'v>(
    header: &'v Header,
    vocabulary: &'v Vocabulary<'v>,
) -> Result<Tokenizer<'v>, TokenizerError> {
    let prefixed = header.boolean(ADD_SPACE_PREFIX)?.unwrap_or(true);
    let scores = scores(header, vocabulary.len())?;
    let escape = json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE});
    let prepend = json!({"type": "Prepend", "prepend": SPACE});
    let normalizer = match prefixed {
        true => json!({"type": "Sequence", "normalizers": [prepend, escape]}),
        false => escape,
    };
    Ok(Tokenizer {
        vocabulary,
        normalizer,
        pre_tokenizer: Value::Null,
        decoder: decoder(prefixed),
        model: Bpe { merges: merges_by_score(vocabulary, &scores), ..character_bpe(vocabulary) },
    })
}

/// Byte-pair encoding over characters, line by line, with the merges that the file lists.
pub(super) fn with_merges<'v>(
    header: &'v Header,
    vocabulary: &'v Vocabulary<'v>,
    pre: Pre,
) -> Result<Tokenizer<'v>, TokenizerError> {
    vocabulary.check_bytes()?;
    let cut_out = |id: u32| vocabulary.attributes[id as usize].cut_out();
    if pre.text == (Text::Escaped { whole_breaks: true })
        && !vocabulary.id("\n").is_some_and(cut_out)
    {
        // The library takes either every word that is a token whole, or none.
        let reason = "its line breaks are no tokens of their own".to_owned();
        return Err(TokenizerError::Inexpressible(reason));
    }
    Ok(Tokenizer {
        vocabulary,
        normalizer: json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE}),
        pre_tokenizer: isolate(r"[^\n]+|[\n]+"),
        decoder: decoder(false),
        model: Bpe { merges: merges(header, vocabulary)?, ..character_bpe(vocabulary) },
    })
}

fn character_bpe<'v>(vocabulary: &'v Vocabulary<'v>) -> Bpe<'v> {
    let unknown = vocabulary.attributes.iter().position(|attributes| attributes.unknown);
    Bpe {
        byte_fallback: true,
        unknown: unknown.map(|id| vocabulary.texts[id].as_ref()),
        ..Bpe::default()
    }
}

fn decoder(prefixed: bool) -> Value {
    let mut steps = vec![
        json!({"type": "Replace", "pattern": {"String": SPACE}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefixed {
        steps.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    json!({"type": "Sequence", "decoders": steps})
}

fn scores(header: &Header, tokens: usize) -> Result<Vec<f32>, TokenizerError> {
    let array = header.array(SCORES)?.ok_or(TokenizerError::Missing(SCORES))?;
    check_length(SCORES, array, tokens)?;
    let scores = header.typed(SCORES, "an array of f32", |_| match array {
        Array::F32(scores) => Some(scores.clone()),
        Array::I32(scores) => Some(scores.iter().map(|&score| score as f32).collect()),
        _ => None,
    })?;
    let scores = scores.ok_or(TokenizerError::Missing(SCORES))?;
    match scores.iter().position(|score| score.is_nan()) {
        Some(id) => Err(TokenizerError::Score(id as u32)),
        None => Ok(scores),
    }
}

/// Every way to make a token of two others, the best-scored token first.
fn merges_by_score<'v>(vocabulary: &'v Vocabulary<'v>, scores: &[f32]) -> Vec<(&'v str, &'v str)> {
    let mut order: Vec<usize> = (0..vocabulary.len()).collect();
    // Where scores are equal llama.cpp goes by place in the text, which no list of merges can say.
    order.sort_by(|&a, &b| {
        let best_first = scores[b].partial_cmp(&scores[a]).expect("no score is NaN");
        best_first.then(a.cmp(&b))
    });
    // The library spells what it doesn't know by the tokens of its bytes before it merges.
    let mut mergeable = vec![true; vocabulary.len()];
    for id in (0..=u8::MAX).filter_map(|byte| vocabulary.id(&byte_token(byte))) {
        mergeable[id as usize] = false;
    }
    let half = |text: &str| vocabulary.id(text).is_some_and(|id| mergeable[id as usize]);
    let mut merges = Vec::with_capacity(order.len() * 2);
    for id in order {
        let text = vocabulary.texts[id].as_ref();
        // In a run of equal characters the odd one is left over at the right: the longer left half
        // goes first.
        let middles = text.char_indices().map(|(middle, _)| middle).skip(1);
        for middle in middles.collect::<Vec<_>>().into_iter().rev() {
            let (left, right) = text.split_at(middle);
            if half(left) && half(right) {
                merges.push((left, right));
            }
        }
    }
    merges
}
