//! Special tokens that files name, and such as are known by their texts.

use spinfer_gguf::write::Writer;

use crate::bpe::{CONTROL, Learned, NORMAL, USER_DEFINED, byte_char, byte_level_file};
use crate::compare::Pair;

fn file(special: &[(&str, i32)]) -> Writer {
    let tokens = (0..=u8::MAX).map(|byte| byte_char(byte).to_string()).collect();
    byte_level_file(&Learned { tokens, merges: Vec::new() }, Some("gpt-2"), special)
}

fn check(name: &str, file: &Writer) -> Pair {
    let mut pair = Pair::write(file);
    pair.assert_same_facts(name);
    // Which tokens are control tokens shows when special tokens are not parsed.
    let header = spinfer_gguf::Header::parse(file.to_bytes().as_slice(), u64::MAX).unwrap();
    let Some(spinfer_gguf::Value::Array(spinfer_gguf::Array::String(tokens))) =
        header.get("tokenizer.ggml.tokens")
    else {
        panic!("the file has tokens")
    };
    let texts: Vec<String> = tokens.iter().skip(256).map(|token| format!("a{token}b")).collect();
    pair.assert_same_ids(name, &texts);
    pair
}

#[test]
fn tokens_that_end_a_generation_are_known_by_their_texts() {
    let texts = [
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "<｜end▁of▁sentence｜>",
        "<end_of_utterance>",
        "<|return|>",
        "<|call|>",
        "<|flush|>",
        "<|calls|>",
        "</s>",
        "<|eom_id|>",
        "[EOS]",
        "<eos>",
        "<turn|>",
        "<|tool_response>",
        "[e~[",
        "<|plamo:eos|>",
        "<|file_sep|>",
        "<|fim_pad|>",
        "<|repo_name|>",
        "[PAD]",
        "<reponame>",
        "<REPO>",
        "<fim-repo>",
        "<fim_pad>",
        "<PAD>",
        "<other>",
    ];
    for kind in [NORMAL, CONTROL, USER_DEFINED] {
        for text in texts {
            check(text, &file(&[(text, kind)]));
        }
    }
}

#[test]
fn some_texts_mean_something_else_beside_others() {
    for special in [
        &["<|end|>", "<|return|>", "<|call|>", "<|channel|>", "<|message|>", "<|start|>"][..],
        &["<|end|>", "<|flush|>", "<|calls|>", "<|constrain|>"],
        &["<|end|>", "<|flush|>", "<|call|>"],
        &["<|end|>", "<|return|>"],
        &["<|end|>", "<|call|>"],
        &["</s>", "<|tool_response>", "<turn|>"],
        &["</s>", "<eos>"],
    ] {
        let special: Vec<(&str, i32)> = special.iter().map(|&text| (text, CONTROL)).collect();
        check(&format!("{special:?}"), &file(&special));
    }
}

#[test]
fn fill_in_the_middle_tokens_are_named_or_known_by_their_texts() {
    let triples = [
        ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
        ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
        ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
        ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
        ["<PRE>", "<SUF>", "<MID>"],
        ["▁<PRE>", "▁<SUF>", "▁<MID>"],
        ["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"],
        ["<|prefix|>", "<|suffix|>", "<|middle|>"],
    ];
    for triple in triples {
        let pair = check(triple[0], &file(&triple.map(|text| (text, NORMAL))));
        assert!(pair.facts.fim().is_some(), "{triple:?}");
    }
    let named = file(&[])
        .set("tokenizer.ggml.fim_pre_token_id", 1u32)
        .set("tokenizer.ggml.fim_suf_token_id", 2u32)
        .set("tokenizer.ggml.fim_mid_token_id", 3u32)
        .set("tokenizer.ggml.fim_pad_token_id", 4u32)
        .set("tokenizer.ggml.fim_rep_token_id", 5u32)
        .set("tokenizer.ggml.fim_sep_token_id", 6u32);
    check("new keys", &named);
    let old = named
        .set("tokenizer.ggml.prefix_token_id", 7u32)
        .set("tokenizer.ggml.suffix_token_id", 8u32)
        .set("tokenizer.ggml.middle_token_id", 9u32);
    check("old keys", &old);
    assert!(check("none", &file(&[])).facts.fim().is_none());
}

#[test]
fn ids_that_the_file_names_win_over_defaults() {
    let named = file(&[("<|endoftext|>", CONTROL)])
        .set("tokenizer.ggml.bos_token_id", 20u32)
        .set("tokenizer.ggml.eos_token_id", 21u32)
        .set("tokenizer.ggml.eot_token_id", 22u32)
        .set("tokenizer.ggml.eom_token_id", 23u32)
        .set("tokenizer.ggml.padding_token_id", 24u32);
    check("named", &named);
    for add in [true, false] {
        let file = named.clone().set("tokenizer.ggml.add_bos_token", add);
        check("add_bos", &file.set("tokenizer.ggml.add_eos_token", add));
    }
    // Some converters write minus one for none.
    check("none", &file(&[]).set("tokenizer.ggml.padding_token_id", u32::MAX));
}
