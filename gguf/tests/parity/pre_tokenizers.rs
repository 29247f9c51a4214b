//! Every pre-tokenizer that can be derived, over a small vocabulary.

use std::sync::LazyLock;

use crate::bpe::{
    CONTROL, Learned, NORMAL, USER_DEFINED, byte_char, byte_level_file, byte_text, learn,
};
use crate::compare::Pair;
use crate::corpus;

static LEARNED: LazyLock<Learned> = LazyLock::new(|| {
    let texts: Vec<String> = corpus::with_random(600).iter().map(|text| byte_text(text)).collect();
    learn(&texts, (0..=u8::MAX).map(byte_char), 3000)
});

const SPECIAL: [(&str, i32); 8] = [
    ("<|endoftext|>", CONTROL),
    ("<|im_start|>", CONTROL),
    // llama.cpp makes this a control token, whatever the file says.
    ("<|im_end|>", NORMAL),
    ("<custom>", USER_DEFINED),
    ("<|fim_prefix|>", NORMAL),
    ("<|fim_suffix|>", CONTROL),
    ("<|fim_middle|>", CONTROL),
    ("<|fim_pad|>", CONTROL),
];

/// Names that stand for the same thing share a line; the first is tested with all texts.
const NAMES: [&[&str]; 30] = [
    &["default"],
    &[
        "llama-bpe",
        "llama3",
        "llama-v3",
        "falcon3",
        "falcon-h1",
        "pixtral",
        "midm-2.0",
        "lfm2",
        "jina-v5-nano",
    ],
    &["dbrx", "smaug-bpe"],
    &["chatglm-bpe"],
    &["glm4", "glm5"],
    &["minicpm5"],
    &["jais-2"],
    &[
        "qwen2",
        "deepseek-r1-qwen",
        "kormo",
        "f2llmv2",
        "megrez",
        "stablelm2",
        "hunyuan",
        "solar-open",
        "grok-2",
    ],
    &["qwen35"],
    &["laguna"],
    &[
        "gpt-2",
        "phi-2",
        "jina-es",
        "jina-de",
        "gigachat",
        "jina-v2-es",
        "jina-v2-de",
        "a.x-4.0",
        "mellum",
        "modern-bert",
        "jina-v1-en",
        "jina-v2-code",
        "roberta-bpe",
        "mpt",
        "olmo",
        "jais",
        "trillion",
        "granite-docling",
        "exaone4",
    ],
    &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"],
    &["falcon"],
    &["deepseek-llm"],
    &["deepseek-coder"],
    &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
    &["spark2_5"],
    &["youtu"],
    &["bloom", "poro-chat", "gpt3-finnish"],
    &["viking"],
    &["tekken"],
    &["chameleon"],
    &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"],
    &["granite-embed-multi-97m"],
    &["tiny_aya", "cohere2moe"],
    &["bailingmoe", "bailingmoe2", "llada-moe"],
    &["seed-coder"],
    &["ufakzeka"],
    &["afmoe"],
    &["exaone-moe"],
];

fn check(name: Option<&str>, texts: &[String]) {
    let mut pair = Pair::write(&byte_level_file(&LEARNED, name, &SPECIAL));
    let name = name.unwrap_or("none");
    pair.assert_same_facts(name);
    pair.assert_same_ids(name, texts);
    pair.assert_round_trips(name, texts.iter());
}

/// Checks one of `names` after the other, and tells all that fail.
fn check_all<'n>(names: impl Iterator<Item = &'n str>, texts: &[String]) {
    let failed = |name: &&str| std::panic::catch_unwind(|| check(Some(name), texts)).is_err();
    let failures: Vec<&str> = names.filter(failed).collect();
    assert!(failures.is_empty(), "{failures:?}");
}

fn firsts() -> impl Iterator<Item = &'static str> {
    NAMES.iter().map(|names| names[0])
}

// Two tests, so that two cores can share the work.

#[test]
fn every_pre_tokenizer_splits_as_in_llama_cpp() {
    check_all(firsts().step_by(2), &corpus::with_random(350));
}

#[test]
fn every_other_pre_tokenizer_splits_as_in_llama_cpp() {
    check_all(firsts().skip(1).step_by(2), &corpus::with_random(350));
}

#[test]
fn other_names_of_a_pre_tokenizer_mean_the_same() {
    let texts: Vec<String> = corpus::with_random(60).into_iter().step_by(4).collect();
    check_all(NAMES.iter().flat_map(|names| names.iter().skip(1).copied()), &texts);
}

#[test]
fn a_file_that_names_no_pre_tokenizer_has_llama_cpps_default() {
    check(None, &corpus::with_random(100));
}

#[test]
fn bytes_that_are_no_tokens_are_left_out_after_merging() {
    let missing = [b'!', 0x04, 0xe4, 0x80].map(|byte| byte_char(byte).to_string());
    let kept = |text: &str| !missing.iter().any(|atom| text.contains(atom.as_str()));
    let fewer = Learned {
        tokens: LEARNED.tokens.iter().filter(|token| kept(token)).cloned().collect(),
        merges: LEARNED.merges.iter().filter(|(l, r)| kept(l) && kept(r)).cloned().collect(),
    };
    let texts = corpus::with_random(600);
    for pre in ["smollm", "llama-bpe"] {
        Pair::write(&byte_level_file(&fewer, Some(pre), &SPECIAL)).assert_same_ids(pre, &texts);
    }
}
