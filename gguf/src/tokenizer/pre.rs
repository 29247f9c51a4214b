//! The pre-tokenizers that llama.cpp knows by name (`tokenizer.ggml.pre`): how a text is split into
//! the words that byte-pair encoding works on, and what else hangs on the name.
//!
//! The patterns are those that llama.cpp runs, not those of the models' makers, where the two
//! differ: it knows the general categories of letters, but not their cases.

/// What the name of a pre-tokenizer stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pre {
    /// What the merges work on.
    pub text: Text,
    /// A word that is a token is taken whole, without looking at the merges.
    pub ignore_merges: bool,
    /// Whether BOS is added when the file doesn't say.
    pub add_bos: bool,
    /// Whether there is a BOS when the file names none.
    pub default_bos: bool,
}

/// A name that llama.cpp doesn't know: only a `tokenizer.json` from the model's owner can help.
pub(super) const UNKNOWN: Pre =
    Pre { text: Text::Unsupported, ignore_merges: false, add_bos: false, default_bos: false };

/// What the merges of a byte-pair vocabulary work on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Text {
    /// Bytes, each written as a printable character. The text is split by each pattern in turn.
    Bytes(&'static [Split]),
    /// Characters, with `▁` for a space, line by line.
    Escaped {
        /// A run of line breaks that is a token is taken whole.
        whole_breaks: bool,
    },
    /// Something that the tokenizer library has no equal for.
    Unsupported,
}

/// One step of splitting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Split {
    /// Every match of the pattern becomes a piece.
    Pattern(&'static str),
    /// Every character of the category N becomes a piece.
    Digits,
    /// Numbers fall into groups of three from the right; the first stays with what precedes it.
    DigitGroups,
    /// GPT-2's own pattern.
    Gpt2,
}

use Split::{DigitGroups, Digits, Gpt2, Pattern};

pub(super) const GPT2: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

macro_rules! contractions {
    () => {
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
    };
}

/// The pattern of Llama 3 and its many kin, with the alternative for numbers to be filled in.
macro_rules! llama_like {
    ($numbers:literal) => {
        concat!(
            contractions!(),
            r"|[^\r\n\p{L}\p{N}]?\p{L}+|",
            $numbers,
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
    };
}

/// Words that begin with capitals or end without them, as o200k has it. `$upper` and `$lower` are
/// classes, `$tail` may follow a word, `$numbers` is the alternative for numbers.
macro_rules! cased_words {
    ($upper:literal, $lower:literal, $tail:expr, $numbers:literal) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?",
            $upper,
            "*",
            $lower,
            "+",
            $tail,
            r"|[^\r\n\p{L}\p{N}]?",
            $upper,
            "+",
            $lower,
            "*",
            $tail,
            "|",
            $numbers,
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
    };
}

/// The last pattern of DeepSeek V3, with what may follow punctuation to be filled in.
macro_rules! deepseek_words {
    ($after:literal) => {
        concat!(
            r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"##,
            r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+",
            $after,
            r"|\s+(?!\S)|\s+"
        )
    };
}

const LLAMA3: &str = llama_like!(r"\p{N}{1,3}");
const QWEN2: &str = llama_like!(r"\p{N}");
const DEEPSEEK3: &str = deepseek_words!(r"[\r\n]*|\s*[\r\n]+");
const UP_TO_THREE_DIGITS: &str = r"\p{N}{1,3}";
const HAN_AND_KANA: &str = r"[一-龥\x{3040}-ゟ゠-ヿ]+";
/// Without the spaces that the range holds: llama.cpp turns those into an ordinary one first.
const CJK: &str = r"[[一-龥\x{800}-一가-\x{D7FF}]&&[^\s]]+";
const LINE_BREAK: &str = r"[\r\n]";
const FINNISH_WORDS: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";
const DEEPSEEK_LETTERS: &str = concat!(
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕ",
    r"Ἐ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\x{1F7D}ᾀ-ᾴᾶ-ᾼ\x{1FBE}ῂ-ῄῆ-ῌῐ-\x{1FD3}ῖ-\x{1FDB}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ",
    r"\x{2126}ℨ\x{212A}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲",
    r"𐳀-𐳲𑢠-𑣟𞤀-𞥃]+",
);
/// The last range begins behind the ideographic space, for the same reason.
const DEEPSEEK_PUNCTUATION: &str = r"\s?[!-/:-~！-／：-～‘-‟\x{3001}-。]+";
const YOUTU_SCRIPTS: &str =
    r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-\x{303F}︰-﹏]+|[ㄅ-ㄯ]+|[一-龥\x{3040}-ゟ゠-ヿ]+";
const AFMOE_SCRIPTS: &str = concat!(
    r"[一-\x{9FFF}㐀-䶿豈-\x{FAFF}\x{3040}-ゟ゠-ヿ･-ﾟ⼀-\x{2FDF}เ-\x{E7F}\x{E80}-\x{EFF}ក-\x{17FF}",
    r"က-႟ꩠ-ꩿꧠ-\x{A9FF}가-\x{D7AF}ᄀ-ᇿ]+"
);
const JAIS2: &str = concat!(
    contractions!(),
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+",
    r"|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)",
    r"|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}"
);
const QWEN35: &str = concat!(
    contractions!(),
    r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+",
    r"|\s+(?!\S)|\s+"
);
const TEKKEN: &str = cased_words!(r"[\p{L}&&[^a-z]]", r"[\p{L}&&[^A-Z]]", "", r"\p{N}");
const GPT4O: &str = cased_words!(
    r"[\p{L}&&[^a-z]]",
    r"[\p{L}&&[^A-Z]]",
    concat!(contractions!(), "?"),
    r"\p{N}{1,3}"
);
const GRANITE_MULTI: &str = cased_words!(
    r"[[\p{L}\p{M}]&&[^a-z]]",
    r"[[\p{L}\p{M}]&&[^A-Z]]",
    concat!(contractions!(), "?"),
    r"\p{N}{1,3}"
);
const YOUTU_WORDS: &str =
    cased_words!(r"[\p{L}\p{M}]", r"[\p{L}\p{M}]", concat!(contractions!(), "?"), r"\p{N}");
const TINY_AYA_WORDS: &str =
    cased_words!(r"[\p{L}\p{M}]", r"[\p{L}\p{M}]", concat!(contractions!(), "?"), r"\p{N}{1,3}");
const BAILING: &str = concat!(
    r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
);
const SEED_CODER: &str = concat!(
    contractions!(),
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const UFAKZEKA: &str =
    r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const EXAONE_MOE: &str = concat!(
    contractions!(),
    r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
);

/// A pre-tokenizer of bytes, with the defaults that most have.
const fn bytes(splits: &'static [Split]) -> Pre {
    Pre { text: Text::Bytes(splits), ignore_merges: false, add_bos: false, default_bos: true }
}

const fn other(text: Text) -> Pre {
    Pre { text, ignore_merges: false, add_bos: false, default_bos: true }
}

/// The pre-tokenizer of that name; the empty name is that of a file without the key.
pub(super) fn by_name(name: &str) -> Option<Pre> {
    Some(match name {
        "" | "default" => bytes(&[
            Pattern(r"[\p{P}\$\+<=>\^~\|]+"),
            Pattern(GPT2),
            Pattern(r"\p{N}+"),
            Pattern("[0-9][0-9][0-9]"),
        ]),
        "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0"
        | "lfm2" | "jina-v5-nano" => {
            Pre { ignore_merges: true, add_bos: true, ..bytes(&[Pattern(LLAMA3)]) }
        }
        "dbrx" | "smaug-bpe" => bytes(&[Pattern(LLAMA3)]),
        "chatglm-bpe" => Pre { default_bos: false, ..bytes(&[Pattern(LLAMA3)]) },
        "glm4" | "glm5" => {
            Pre { ignore_merges: true, default_bos: false, ..bytes(&[Pattern(LLAMA3)]) }
        }
        "minicpm5" => Pre {
            ignore_merges: true,
            ..bytes(&[Pattern(UP_TO_THREE_DIGITS), Pattern(llama_like!(r"\p{N}+"))])
        },
        "jais-2" => bytes(&[Pattern(JAIS2)]),
        "qwen2" | "deepseek-r1-qwen" | "kormo" | "f2llmv2" | "megrez" | "stablelm2" | "hunyuan"
        | "solar-open" | "grok-2" => bytes(&[Pattern(QWEN2)]),
        "qwen35" => bytes(&[Pattern(QWEN35)]),
        "laguna" => bytes(&[Pattern(r"[^\n]+|[\n]+"), Pattern(QWEN2)]),
        "gpt-2" | "phi-2" | "jina-es" | "jina-de" | "gigachat" | "jina-v2-es" | "jina-v2-de"
        | "a.x-4.0" | "mellum" | "modern-bert" | "jina-v1-en" | "jina-v2-code" | "roberta-bpe"
        | "mpt" | "olmo" | "jais" | "trillion" | "granite-docling" | "exaone4" => bytes(&[Gpt2]),
        "starcoder" | "refact" | "command-r" | "smollm" | "codeshell" | "exaone" | "minerva-7b"
        | "mellum2" => bytes(&[Digits, Gpt2]),
        "falcon" => {
            bytes(&[Pattern(r"[\p{P}\$\+<=>\^~\|`]+"), Pattern(GPT2), Pattern("[0-9][0-9][0-9]")])
        }
        "deepseek-llm" => bytes(&[
            Pattern(LINE_BREAK),
            Pattern(DEEPSEEK_LETTERS),
            Pattern(DEEPSEEK_PUNCTUATION),
            Pattern(r"\s+$"),
            Pattern(CJK),
            Pattern(r"\p{N}+"),
        ]),
        "deepseek-coder" => bytes(&[
            Pattern(LINE_BREAK),
            Pattern(r"\s?\p{L}+"),
            Pattern(r"\s?\p{P}+"),
            Pattern(CJK),
            Pattern(r"\p{N}"),
        ]),
        "deepseek-v3" | "hunyuan-dense" | "joyai-llm" | "hy_v4" => {
            bytes(&[Pattern(UP_TO_THREE_DIGITS), Pattern(HAN_AND_KANA), Pattern(DEEPSEEK3)])
        }
        "spark2_5" => bytes(&[
            Pattern(UP_TO_THREE_DIGITS),
            Pattern(HAN_AND_KANA),
            Pattern(deepseek_words!(r"|[\r\n]")),
            Pattern(r"\p{N}"),
        ]),
        "youtu" => {
            Pre { ignore_merges: true, ..bytes(&[Pattern(YOUTU_SCRIPTS), Pattern(YOUTU_WORDS)]) }
        }
        "poro-chat" | "bloom" | "gpt3-finnish" => bytes(&[Pattern(FINNISH_WORDS)]),
        "viking" => bytes(&[Pattern(FINNISH_WORDS), Pattern(r"\p{N}")]),
        "tekken" => Pre { ignore_merges: true, add_bos: true, ..bytes(&[Pattern(TEKKEN)]) },
        "chameleon" => Pre {
            add_bos: true,
            ..bytes(&[
                Pattern("<sentinel:[0-9]+>"),
                Pattern("(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z"),
                Pattern(r"([\t\n]|    |  )"),
                Pattern(r"\p{N}"),
                Pattern(r"[\p{P}!-/:-@\[-`{-~]"),
                Gpt2,
            ])
        },
        "gpt-4o" | "llama4" | "kanana2" | "talkie" | "minimax-m2" => bytes(&[Pattern(GPT4O)]),
        "granite-embed-multi-97m" => {
            Pre { ignore_merges: true, ..bytes(&[Pattern(GRANITE_MULTI)]) }
        }
        "tiny_aya" | "cohere2moe" => bytes(&[DigitGroups, Pattern(TINY_AYA_WORDS)]),
        "bailingmoe" | "bailingmoe2" | "llada-moe" => bytes(&[Pattern(BAILING)]),
        "seed-coder" => bytes(&[Pattern(SEED_CODER)]),
        "ufakzeka" => bytes(&[Pattern(UFAKZEKA)]),
        "afmoe" => bytes(&[DigitGroups, Pattern(AFMOE_SCRIPTS), Pattern(DEEPSEEK3)]),
        "exaone-moe" => bytes(&[Pattern(EXAONE_MOE)]),
        "gemma4" | "granite-embed-multi-311m" => {
            Pre { add_bos: true, ..other(Text::Escaped { whole_breaks: true }) }
        }
        "sarvam-moe" => other(Text::Escaped { whole_breaks: false }),
        "mmbert" | "whitespace" | "kimi-k2" | "superbpe" => other(Text::Unsupported),
        _ => return None,
    })
}
