//! Real vocabularies.

use spinfer_gguf::{Header, ModelInfo, tokenizer};

use crate::compare::{Pair, model};
use crate::corpus;

const SMOLLM2: &str = "smollm2-135m-instruct";
const GEMMA3: &str = "gemma-3-270m";

#[test]
fn smollm2_tokenizes_as_in_llama_cpp() {
    let mut pair = Pair::load(&model(SMOLLM2));
    let texts = corpus::with_random(3000);
    pair.assert_same_facts(SMOLLM2);
    pair.assert_same_ids(SMOLLM2, &texts);
    // The vocabulary has no tokens for some bytes; a text with one of them can't come back.
    let complete = |text: &&String| {
        text.bytes().all(|byte| !matches!(byte, 4 | 6 | 0x13 | 0x14 | 0x16 | 0x1d | 0xf1 | 0xf2))
    };
    let texts: Vec<&String> = texts.iter().filter(complete).collect();
    assert!(texts.len() > 2500);
    pair.assert_round_trips(SMOLLM2, texts.into_iter());
}

#[test]
fn gemma3_tokenizes_as_in_llama_cpp() {
    let mut pair = Pair::load(&model(GEMMA3));
    let texts = corpus::with_random(3000);
    pair.assert_same_facts(GEMMA3);
    pair.assert_same_ids(GEMMA3, &texts);
    // A space is written as this character, so it comes back as one.
    pair.assert_round_trips(GEMMA3, texts.iter().filter(|text| !text.contains('▁')));
}

#[test]
fn the_facts_of_the_real_models_are_these() {
    let header = Header::read(&model(SMOLLM2)).unwrap();
    let info = ModelInfo::from_header(&header).unwrap();
    assert_eq!((info.context_length, info.block_count), (8192, 30));
    assert_eq!(info.kv_bytes_per_token(), 23_040);
    let facts = tokenizer::facts(&header).unwrap();
    assert_eq!((facts.bos, facts.eos, facts.add_bos), (Some(1), Some(2), false));
    assert_eq!(facts.end_of_generation, [0, 2, 4]);
    assert!(facts.chat_template.unwrap().contains("<|im_start|>"));

    let header = Header::read(&model(GEMMA3)).unwrap();
    let info = ModelInfo::from_header(&header).unwrap();
    assert_eq!(info.kv_bytes_per_token(), 18_432);
    let facts = tokenizer::facts(&header).unwrap();
    assert_eq!((facts.bos, facts.eos, facts.add_bos), (Some(2), Some(1), true));
}
