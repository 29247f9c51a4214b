//! Vocabularies of characters, small ones.

use std::collections::HashMap;
use std::sync::LazyLock;

use spinfer_gguf::write::Writer;

use crate::bpe::{BYTE, CONTROL, Learned, NORMAL, UNKNOWN, USER_DEFINED, learn, vocabulary_file};
use crate::compare::Pair;
use crate::corpus;

const SPECIAL: [(&str, i32); 4] =
    [("<custom>", USER_DEFINED), ("  ", USER_DEFINED), ("<|im_end|>", CONTROL), ("[x]", CONTROL)];

static LEARNED: LazyLock<Learned> = LazyLock::new(|| {
    let texts: Vec<String> =
        corpus::with_random(600).iter().map(|text| text.replace(' ', "▁")).collect();
    let mut counts: HashMap<char, u32> = HashMap::new();
    for letter in texts.iter().flat_map(|text| text.chars()) {
        *counts.entry(letter).or_default() += 1;
    }
    // Characters that are rare are left to the tokens for bytes, and so is NUL, which ends a text
    // for llama.cpp.
    let mut alphabet: Vec<char> = counts
        .into_iter()
        .filter(|&(letter, count)| count > 8 && letter != '\0')
        .map(|(letter, _)| letter)
        .collect();
    alphabet.sort_unstable();
    learn(&texts, alphabet.into_iter(), 2500)
});

/// Unknown, beginning, end and bytes, as every such vocabulary begins.
fn preamble() -> Vec<(String, i32)> {
    let first = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)];
    let first = first.map(|(text, kind)| (text.to_owned(), kind));
    first.into_iter().chain((0..=255).map(|byte| (format!("<0x{byte:02X}>"), BYTE))).collect()
}

/// The preamble, what was learned, and special tokens.
fn file(model: &str) -> Writer {
    let preamble = preamble();
    let new = |token: &&String| !preamble.iter().any(|(text, _)| text == *token);
    let learned = LEARNED.tokens.iter().filter(new);
    let tokens: Vec<String> =
        preamble.iter().map(|(text, _)| text).chain(learned).cloned().collect();
    let kinds: Vec<(&str, i32)> =
        preamble.iter().map(|(text, kind)| (text.as_str(), *kind)).chain(SPECIAL).collect();
    vocabulary_file(model, &tokens, &kinds)
        .set("tokenizer.ggml.bos_token_id", 1u32)
        .set("tokenizer.ggml.eos_token_id", 2u32)
        .set("tokenizer.ggml.unknown_token_id", 0u32)
}

fn merges() -> Vec<String> {
    LEARNED.merges.iter().map(|(left, right)| format!("{left} {right}")).collect()
}

/// A SentencePiece vocabulary: what was learned first scores best, and characters score worst.
fn scored() -> Writer {
    let file = file("llama");
    let preamble = preamble().len();
    let count = spinfer_gguf::Header::parse(file.to_bytes().as_slice(), u64::MAX)
        .unwrap()
        .array("tokenizer.ggml.tokens")
        .unwrap()
        .unwrap()
        .len();
    let letters = LEARNED.tokens.iter().take_while(|token| token.chars().count() == 1).count();
    let score = |id: usize| match id {
        id if id < preamble => 0.0,
        id if id < preamble + letters => -1e6 - id as f32,
        id => -(id as f32),
    };
    file.set("tokenizer.ggml.scores", (0..count).map(score).collect::<Vec<f32>>())
}

#[test]
fn scores_order_merges() {
    let texts = corpus::with_random(1500);
    for prefixed in [true, false] {
        let name = format!("add_space_prefix {prefixed}");
        let mut pair = Pair::write(&scored().set("tokenizer.ggml.add_space_prefix", prefixed));
        pair.assert_same_facts(&name);
        pair.assert_same_ids(&name, &texts);
        // A space that was put behind a special token stays, and the texts of some tokens are read
        // as something else.
        let added = pair.derived.get_added_tokens_decoder();
        let plain = |text: &&String| {
            !pair.ids(text).iter().any(|&id| added.contains_key(&(id as u32)))
                && !["▁", "<0x"].iter().any(|odd| text.contains(odd))
        };
        pair.assert_round_trips(&name, texts.iter().filter(plain));
    }
}

#[test]
fn spaces_are_put_before_texts_unless_the_file_says_no() {
    let pair = Pair::write(&scored());
    let first = pair.derived.id_to_token(pair.ids("x")[0] as u32).unwrap();
    assert!(first.starts_with('▁'), "{first}");
}

#[test]
fn special_tokens_of_phi_3_take_the_spaces_behind_them_along() {
    // The library takes tokens of spaces again that a token before them took along.
    let file = with_type(scored().set("general.name", "Phi-3 mini"), "  ", NORMAL);
    let mut pair = Pair::write(&file);
    // The two don't agree on what is a space beyond ASCII, and no vocabulary asks for it.
    let ascii = |text: &String| text.chars().all(|c| c.is_ascii() || !c.is_whitespace());
    let texts: Vec<String> = corpus::with_random(1500).into_iter().filter(ascii).collect();
    pair.assert_same_ids("phi-3", &texts);
}

#[test]
fn listed_merges_over_characters() {
    let texts = corpus::with_random(1500);
    // Gemma has line breaks as tokens of their own.
    let gemma = file("gemma4").set("tokenizer.ggml.merges", merges());
    let gemma = with_type(gemma, "\n", USER_DEFINED);
    let sarvam =
        file("gpt2").set("tokenizer.ggml.pre", "sarvam-moe").set("tokenizer.ggml.merges", merges());
    for (name, file) in [("gemma4", gemma), ("sarvam-moe", sarvam)] {
        let mut pair = Pair::write(&file);
        pair.assert_same_facts(name);
        pair.assert_same_ids(name, &texts);
        pair.assert_round_trips(name, texts.iter().filter(|text| !text.contains('▁')));
    }
}

/// The file with another type for one token.
fn with_type(file: Writer, text: &str, kind: i32) -> Writer {
    let bytes = file.to_bytes();
    let header = spinfer_gguf::Header::parse(bytes.as_slice(), bytes.len() as u64).unwrap();
    let Some(spinfer_gguf::Value::Array(spinfer_gguf::Array::String(tokens))) =
        header.get("tokenizer.ggml.tokens")
    else {
        panic!("the file has tokens")
    };
    let types = header.array("tokenizer.ggml.token_type").unwrap().unwrap();
    let kinds = (0..tokens.len()).map(|id| match tokens.get(id) {
        Some(token) if token == text => kind,
        _ => types.get_u64(id).unwrap() as i32,
    });
    let kinds: Vec<i32> = kinds.collect();
    file.set("tokenizer.ggml.token_type", kinds)
}
