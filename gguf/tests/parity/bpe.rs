//! Learns small byte-pair vocabularies and writes them as GGUF files that hold nothing else.

use std::collections::HashMap;

use spinfer_gguf::write::Writer;

/// A token's type in the file.
pub const NORMAL: i32 = 1;
pub const UNKNOWN: i32 = 2;
pub const CONTROL: i32 = 3;
pub const USER_DEFINED: i32 = 4;
pub const BYTE: i32 = 6;

/// Tokens and merges, both in the order they were learned in.
pub struct Learned {
    pub tokens: Vec<String>,
    pub merges: Vec<(String, String)>,
}

/// Learns `count` merges of neighbouring characters. Texts are not split into words, so that merges
/// reach over every border that a pre-tokenizer should draw: a missing border then changes ids.
pub fn learn(texts: &[String], alphabet: impl Iterator<Item = char>, count: usize) -> Learned {
    let mut tokens: Vec<String> = alphabet.map(String::from).collect();
    let ids: HashMap<&str, u32> = tokens.iter().map(String::as_str).zip(0..).collect();
    let mut words: Vec<Vec<u32>> = texts
        .iter()
        .map(|text| {
            text.chars()
                .filter_map(|c| ids.get(c.encode_utf8(&mut [0; 4]) as &str))
                .copied()
                .collect()
        })
        .collect();
    let mut merges = Vec::new();
    while merges.len() < count {
        let Some(pair) = most_frequent(&words) else {
            break;
        };
        let new = tokens.len() as u32;
        let (left, right) = (tokens[pair.0 as usize].clone(), tokens[pair.1 as usize].clone());
        let whole = format!("{left}{right}");
        match tokens.iter().position(|token| *token == whole) {
            // Two ways to one token.
            Some(known) => replace(&mut words, pair, known as u32),
            None => {
                tokens.push(whole);
                replace(&mut words, pair, new);
            }
        }
        merges.push((left, right));
    }
    Learned { tokens, merges }
}

fn most_frequent(words: &[Vec<u32>]) -> Option<(u32, u32)> {
    let mut counts: HashMap<(u32, u32), u32> = HashMap::new();
    for pair in words.iter().flat_map(|word| word.windows(2)) {
        *counts.entry((pair[0], pair[1])).or_default() += 1;
    }
    counts.into_iter().max_by_key(|&(pair, count)| (count, std::cmp::Reverse(pair))).map(|(p, _)| p)
}

fn replace(words: &mut [Vec<u32>], pair: (u32, u32), new: u32) {
    for word in words {
        let mut kept = 0;
        let mut at = 0;
        while at < word.len() {
            let merges = at + 1 < word.len() && (word[at], word[at + 1]) == pair;
            word[kept] = if merges { new } else { word[at] };
            at += if merges { 2 } else { 1 };
            kept += 1;
        }
        word.truncate(kept);
    }
}

/// The character that stands for a byte in byte-level vocabularies.
pub fn byte_char(byte: u8) -> char {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..);
    let before = (0..byte).filter(|&b| !printable(b)).count() as u32;
    if printable(byte) { byte.into() } else { char::from_u32(256 + before).unwrap() }
}

/// A text as byte-level vocabularies write it.
pub fn byte_text(text: &str) -> String {
    text.bytes().map(byte_char).collect()
}

/// A file with a byte-level vocabulary: what was learned, and behind it special tokens.
pub fn byte_level_file(learned: &Learned, pre: Option<&str>, special: &[(&str, i32)]) -> Writer {
    let merges = learned.merges.iter().map(|(left, right)| format!("{left} {right}"));
    let writer = vocabulary_file("gpt2", &learned.tokens, special)
        .set("tokenizer.ggml.merges", merges.collect::<Vec<_>>());
    match pre {
        Some(pre) => writer.set("tokenizer.ggml.pre", pre),
        None => writer,
    }
}

/// A file with a vocabulary and nothing else.
pub fn vocabulary_file(model: &str, tokens: &[String], special: &[(&str, i32)]) -> Writer {
    let mut tokens = tokens.to_vec();
    let mut types = vec![NORMAL; tokens.len()];
    for &(text, kind) in special {
        // The text may have been learned.
        match tokens.iter().position(|token| token == text) {
            Some(id) => types[id] = kind,
            None => {
                tokens.push(text.to_owned());
                types.push(kind);
            }
        }
    }
    Writer::new()
        .set("general.architecture", "llama")
        .set("tokenizer.ggml.model", model)
        .set("tokenizer.ggml.tokens", tokens)
        .set("tokenizer.ggml.token_type", types)
}
