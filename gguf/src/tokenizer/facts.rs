//! What is to be known about a vocabulary besides how it tokenizes. llama.cpp knows much of it by
//! the tokens' texts, since files say too little or the wrong thing; the same is done here.

use std::collections::BTreeSet;

use spinfer_protocol::FimTokens;

use super::TokenizerError;
use super::pre::Text;
use super::vocabulary::{Attributes, Kind, Vocabulary};
use crate::header::Header;

/// Special tokens and what to do with them. Ids are in `0..vocab_size`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenizerFacts {
    /// Tokens in the vocabulary.
    pub vocab_size: u32,
    /// Beginning of sequence.
    pub bos: Option<u32>,
    /// End of sequence.
    pub eos: Option<u32>,
    /// Padding.
    pub pad: Option<u32>,
    /// Every token that ends a generation, ascending; `eos` is among them.
    pub end_of_generation: Vec<u32>,
    /// Whether `bos` goes before a text.
    pub add_bos: bool,
    /// Whether `eos` goes behind a text.
    pub add_eos: bool,
    /// Fill-in-the-middle: before the text that precedes the gap.
    pub fim_prefix: Option<u32>,
    /// Fill-in-the-middle: before the text that follows the gap.
    pub fim_suffix: Option<u32>,
    /// Fill-in-the-middle: where the model fills the gap.
    pub fim_middle: Option<u32>,
    /// The chat template (Jinja).
    pub chat_template: Option<String>,
}

const END_OF_TURN: [&str; 11] = [
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
];
/// These end a generation too.
const END_OF_GENERATION: [&str; 10] = [
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "</s>",
    "[EOS]",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "[e~[",
];
const END_OF_MESSAGE: [&str; 1] = ["<|eom_id|>"];
const FIM_PREFIX: [&str; 8] = [
    "<|fim_prefix|>",
    "<fim-prefix>",
    "<fim_prefix>",
    "<｜fim▁begin｜>",
    "<PRE>",
    "▁<PRE>",
    "<|code_prefix|>",
    "<|prefix|>",
];
const FIM_SUFFIX: [&str; 8] = [
    "<|fim_suffix|>",
    "<fim-suffix>",
    "<fim_suffix>",
    "<｜fim▁hole｜>",
    "<SUF>",
    "▁<SUF>",
    "<|code_suffix|>",
    "<|suffix|>",
];
const FIM_MIDDLE: [&str; 8] = [
    "<|fim_middle|>",
    "<fim-middle>",
    "<fim_middle>",
    "<｜fim▁end｜>",
    "<MID>",
    "▁<MID>",
    "<|code_middle|>",
    "<|middle|>",
];
const FIM_PAD: [&str; 5] = ["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"];
const FIM_REPOSITORY: [&str; 5] =
    ["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"];
const FIM_SEPARATOR: [&str; 1] = ["<|file_sep|>"];
/// The parts of a gpt-oss message, which are to be seen in the output.
const ALWAYS_SHOWN: [&str; 4] = ["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

/// The tokens that frame a fill-in-the-middle prompt, in a vocabulary that has all of them. `id` gives a token's
/// id by its text.
pub fn fim_by_text(id: impl Fn(&str) -> Option<u32>) -> Option<FimTokens> {
    let first = |texts: &[&str]| texts.iter().find_map(|text| id(text));
    Some(FimTokens {
        prefix: first(&FIM_PREFIX)?,
        suffix: first(&FIM_SUFFIX)?,
        middle: first(&FIM_MIDDLE)?,
    })
}

/// The ids that the file names, or that its tokenizer has by default.
#[derive(Debug, Clone, Copy, Default)]
struct Named {
    bos: Option<u32>,
    eos: Option<u32>,
    pad: Option<u32>,
    end_of_turn: Option<u32>,
    end_of_message: Option<u32>,
    fim_prefix: Option<u32>,
    fim_suffix: Option<u32>,
    fim_middle: Option<u32>,
    fim_pad: Option<u32>,
    fim_repository: Option<u32>,
    fim_separator: Option<u32>,
}

impl TokenizerFacts {
    /// The tokens that frame a fill-in-the-middle prompt, if the vocabulary has all of them.
    pub fn fim(&self) -> Option<FimTokens> {
        Some(FimTokens {
            prefix: self.fim_prefix?,
            suffix: self.fim_suffix?,
            middle: self.fim_middle?,
        })
    }

    /// Finds the facts, and marks in the vocabulary which tokens are control tokens whatever the
    /// file says.
    pub(super) fn detect(
        header: &Header,
        vocabulary: &mut Vocabulary<'_>,
    ) -> Result<Self, TokenizerError> {
        let mut named = Named::read(header, vocabulary)?;
        named.find_by_text(vocabulary);
        let end_of_generation = end_of_generation(&named, vocabulary);
        let (add_bos, add_eos) = additions(header, vocabulary)?;
        Ok(Self {
            vocab_size: vocabulary.len() as u32,
            bos: named.bos,
            eos: named.eos,
            pad: named.pad,
            end_of_generation: end_of_generation.into_iter().collect(),
            add_bos: add_bos && named.bos.is_some(),
            add_eos: add_eos && named.eos.is_some(),
            fim_prefix: named.fim_prefix,
            fim_suffix: named.fim_suffix,
            fim_middle: named.fim_middle,
            chat_template: header.string("tokenizer.chat_template")?.map(str::to_owned),
        })
    }
}

impl Named {
    fn read(header: &Header, vocabulary: &Vocabulary<'_>) -> Result<Self, TokenizerError> {
        let mut named = Self::defaults(vocabulary);
        for (key, id) in named.keys() {
            let tokens = vocabulary.len();
            *id = id.filter(|&id| (id as usize) < tokens);
            match header.integer(key)? {
                // Minus one, as some converters write for none.
                None | Some(0xFFFF_FFFF) => {}
                Some(value) if value < tokens as u64 => *id = Some(value as u32),
                Some(value) => {
                    return Err(TokenizerError::SpecialToken { key, id: value, tokens });
                }
            }
        }
        // The old names of the FIM keys, which win over the new ones.
        let old = [
            ("tokenizer.ggml.prefix_token_id", &mut named.fim_prefix),
            ("tokenizer.ggml.suffix_token_id", &mut named.fim_suffix),
            ("tokenizer.ggml.middle_token_id", &mut named.fim_middle),
        ];
        for (key, id) in old {
            let value = header.integer(key)?.and_then(|value| u32::try_from(value).ok());
            *id = value.filter(|&value| (value as usize) < vocabulary.len()).or(*id);
        }
        Ok(named)
    }

    fn defaults(vocabulary: &Vocabulary<'_>) -> Self {
        let of = |bos, eos, pad| Self { bos, eos, pad, ..Self::default() };
        match (vocabulary.model, vocabulary.kind) {
            ("llama", _) => of(Some(1), Some(2), None),
            ("gpt2", Kind::Bpe(pre)) => of(pre.default_bos.then_some(11), Some(11), None),
            ("hybriddna" | "whitespace", _) => of(Some(11), Some(11), None),
            ("bert", _) => of(Some(101), None, Some(0)),
            ("t5", _) => of(None, Some(1), Some(0)),
            ("plamo2", _) => of(Some(1), Some(2), Some(3)),
            _ => Self::default(),
        }
    }

    fn keys(&mut self) -> [(&'static str, &mut Option<u32>); 11] {
        [
            ("tokenizer.ggml.bos_token_id", &mut self.bos),
            ("tokenizer.ggml.eos_token_id", &mut self.eos),
            ("tokenizer.ggml.padding_token_id", &mut self.pad),
            ("tokenizer.ggml.eot_token_id", &mut self.end_of_turn),
            ("tokenizer.ggml.eom_token_id", &mut self.end_of_message),
            ("tokenizer.ggml.fim_pre_token_id", &mut self.fim_prefix),
            ("tokenizer.ggml.fim_suf_token_id", &mut self.fim_suffix),
            ("tokenizer.ggml.fim_mid_token_id", &mut self.fim_middle),
            ("tokenizer.ggml.fim_pad_token_id", &mut self.fim_pad),
            ("tokenizer.ggml.fim_rep_token_id", &mut self.fim_repository),
            ("tokenizer.ggml.fim_sep_token_id", &mut self.fim_separator),
        ]
    }

    /// Looks for the tokens that the file doesn't name by their texts, and makes them control tokens.
    /// Where there are several, llama.cpp takes one by the order of a hash table, and this the first.
    fn find_by_text(&mut self, vocabulary: &mut Vocabulary<'_>) {
        let searches: [(&mut Option<u32>, &[&str]); 8] = [
            (&mut self.end_of_turn, &END_OF_TURN),
            (&mut self.end_of_message, &END_OF_MESSAGE),
            (&mut self.fim_prefix, &FIM_PREFIX),
            (&mut self.fim_suffix, &FIM_SUFFIX),
            (&mut self.fim_middle, &FIM_MIDDLE),
            (&mut self.fim_pad, &FIM_PAD),
            (&mut self.fim_repository, &FIM_REPOSITORY),
            (&mut self.fim_separator, &FIM_SEPARATOR),
        ];
        for (id, texts) in searches {
            if id.is_none() {
                *id = texts.iter().find_map(|text| vocabulary.id(text));
                if let Some(id) = *id {
                    vocabulary.attributes_mut(id).control = true;
                }
            }
        }
    }
}

fn end_of_generation(named: &Named, vocabulary: &mut Vocabulary<'_>) -> BTreeSet<u32> {
    let mut ends = BTreeSet::new();
    ends.extend([named.fim_pad, named.fim_repository, named.fim_separator].into_iter().flatten());
    for text in END_OF_TURN.iter().chain(&END_OF_MESSAGE).chain(&END_OF_GENERATION) {
        if let Some(id) = vocabulary.id(text) {
            ends.insert(id);
            vocabulary.attributes_mut(id).control = true;
        }
    }
    let only_user_defined = Attributes { user_defined: true, ..Attributes::default() };
    for text in ALWAYS_SHOWN {
        if let Some(id) = vocabulary.id(text) {
            *vocabulary.attributes_mut(id) = only_user_defined;
        }
    }
    ends.extend([named.eos, named.end_of_turn, named.end_of_message].into_iter().flatten());

    let end = |text: &str| vocabulary.id(text).filter(|id| ends.contains(id));
    let calls = end("<|call|>").or(end("<|calls|>")).is_some();
    let returns = end("<|return|>").or(end("<|flush|>")).is_some();
    // There, the end of a message is not that of the answer.
    let message = end("<|end|>").filter(|_| calls && returns);
    // There, this is a tag of HTML.
    let tag = end("</s>").filter(|_| end("<|tool_response>").or(end("<|plamo:eos|>")).is_some());
    if let Some(id) = message {
        ends.remove(&id);
        *vocabulary.attributes_mut(id) = only_user_defined;
    }
    if let Some(id) = tag {
        ends.remove(&id);
        *vocabulary.attributes_mut(id) = Attributes::default();
    }
    ends
}

/// Whether BOS goes before a text and EOS behind it: as the file says, else as is usual for its
/// tokenizer.
fn additions(header: &Header, vocabulary: &Vocabulary<'_>) -> Result<(bool, bool), TokenizerError> {
    let (bos, eos) = match (vocabulary.kind, vocabulary.model) {
        (Kind::SentencePiece, _) => (true, false),
        (Kind::Bpe(pre), _) => (pre.add_bos, false),
        (Kind::Other, "bert") => (true, false),
        (Kind::Other, "t5") => (false, true),
        (Kind::Other, _) => (false, false),
    };
    // Files of Gemma 4 say no by mistake.
    let always = matches!(vocabulary.kind, Kind::Bpe(pre)
        if pre.text == Text::Escaped { whole_breaks: true });
    let bos = header.boolean("tokenizer.ggml.add_bos_token")?.unwrap_or(bos) || always;
    let eos = header.boolean("tokenizer.ggml.add_eos_token")?.unwrap_or(eos);
    Ok((bos, eos))
}
