//! Byte-pair encoding over bytes, as GPT-2 introduced it.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::TokenizerError;
use super::json::{Bpe, Tokenizer};
use super::pre::{GPT2, Pre, Split};
use super::vocabulary::{MERGES, Vocabulary, strings, to_nul};
use crate::header::Header;

pub(super) fn tokenizer<'v>(
    header: &'v Header,
    vocabulary: &'v Vocabulary<'v>,
    pre: Pre,
    splits: &[Split],
) -> Result<Tokenizer<'v>, TokenizerError> {
    let merges = merges(header, vocabulary)?;
    Ok(Tokenizer {
        vocabulary,
        normalizer: Value::Null,
        pre_tokenizer: pre_tokenizer(vocabulary, splits),
        decoder: byte_level(false),
        model: Bpe { merges, ignore_merges: pre.ignore_merges, ..Bpe::default() },
    })
}

/// The merges that the file lists.
pub(super) fn merges<'v>(
    header: &'v Header,
    vocabulary: &Vocabulary<'v>,
) -> Result<Vec<(&'v str, &'v str)>, TokenizerError> {
    let lines = strings(header, MERGES)?.ok_or(TokenizerError::Missing(MERGES))?;
    let mut merges = Vec::with_capacity(lines.len());
    let mut seen = HashSet::with_capacity(lines.len());
    let mut whole = String::new();
    for line in lines.iter() {
        // A half may begin with a space, and lines without a second half do nothing.
        let Some((left, right)) = split_merge(to_nul(line)) else {
            continue;
        };
        // Only the first of equal merges counts; the library would take the last.
        if !seen.insert((left, right)) {
            continue;
        }
        whole.clear();
        whole.push_str(left);
        whole.push_str(right);
        if let Some(text) = [left, right, &whole].iter().find(|text| vocabulary.id(text).is_none())
        {
            let reason = format!("the merge {line:?} needs {text:?}, which is not a token");
            return Err(TokenizerError::Inexpressible(reason));
        }
        merges.push((left, right));
    }
    Ok(merges)
}

fn split_merge(line: &str) -> Option<(&str, &str)> {
    let first = line.chars().next()?.len_utf8();
    let middle = line[first..].find(' ')? + first;
    Some((&line[..middle], &line[middle + 1..]))
}

fn pre_tokenizer(vocabulary: &Vocabulary<'_>, splits: &[Split]) -> Value {
    let mut steps: Vec<Value> = Vec::new();
    let (last, first) = splits.split_last().expect("every pre-tokenizer has a step");
    steps.extend(first.iter().map(split));
    // The byte-level step has GPT-2's pattern built in.
    if *last != Split::Gpt2 {
        steps.push(split(last));
    }
    steps.push(byte_level(*last == Split::Gpt2));
    steps.extend(drop_missing(vocabulary));
    json!({"type": "Sequence", "pretokenizers": steps})
}

/// Only the first group of a number looks ahead to its end, so that long numbers take linear time.
const DIGIT_GROUP: &str = r"(?<!\p{N})\p{N}{1,2}(?=(?:\p{N}{3})*(?!\p{N}))|\p{N}{3}";

fn split(step: &Split) -> Value {
    match step {
        Split::Pattern(pattern) => isolate(pattern),
        Split::Digits => json!({"type": "Digits", "individual_digits": true}),
        Split::DigitGroups => json!({"type": "Split", "pattern": {"Regex": DIGIT_GROUP},
            "behavior": "MergedWithPrevious", "invert": false}),
        Split::Gpt2 => isolate(GPT2),
    }
}

/// Every match of the pattern becomes a piece, and so does what is between.
pub(super) fn isolate(pattern: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
}

fn byte_level(use_regex: bool) -> Value {
    let (add_prefix_space, trim_offsets) = (false, false);
    json!({"type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": trim_offsets,
        "use_regex": use_regex})
}

/// Some vocabularies lack bytes (SmolLM2's has no control character 4). llama.cpp leaves such a byte
/// out after merging; the library would do so before, and then merge what stood around it.
fn drop_missing(vocabulary: &Vocabulary<'_>) -> Option<Value> {
    let missing: String = (0..=u8::MAX)
        .filter(|&byte| occurs_in_utf8(byte))
        .map(byte_char)
        .filter(|&letter| vocabulary.id(letter.encode_utf8(&mut [0; 4])).is_none())
        .map(|letter| format!("\\x{{{:X}}}", u32::from(letter)))
        .collect();
    (!missing.is_empty()).then(|| {
        json!({"type": "Split", "pattern": {"Regex": format!("[{missing}]")},
            "behavior": "Removed", "invert": false})
    })
}

fn occurs_in_utf8(byte: u8) -> bool {
    !matches!(byte, 0xC0 | 0xC1 | 0xF5..)
}

/// The character that stands for a byte: itself where it is printable Latin-1, else one from U+0100
/// on, in order.
pub(super) fn byte_char(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&byte| !printable(byte)).count() as u32;
    char::from_u32(0x100 + before).expect("there are no surrogates near U+0100")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_gpt2s_characters() {
        assert_eq!(byte_char(b'A'), 'A');
        assert_eq!(byte_char(b' '), 'Ġ');
        assert_eq!(byte_char(b'\n'), 'Ċ');
        assert_eq!(byte_char(0xAD), 'Ń');
        let all: HashSet<char> = (0..=u8::MAX).map(byte_char).collect();
        assert_eq!(all.len(), 256);
    }

    #[test]
    fn the_first_half_of_a_merge_may_be_a_space() {
        assert_eq!(split_merge("a b"), Some(("a", "b")));
        assert_eq!(split_merge("  b"), Some((" ", "b")));
        assert_eq!(split_merge("é bc d"), Some(("é", "bc d")));
        assert_eq!(split_merge("ab"), None);
        assert_eq!(split_merge(""), None);
    }
}
