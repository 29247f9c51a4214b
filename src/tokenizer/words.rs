//! Splitting text into the words that the merges of a byte-level vocabulary work on.
//!
//! The library's own splitting takes most of the time of tokenizing: nearly all
//! patterns look ahead in their last alternatives, for which its engine tracks back; and it keeps for
//! every byte where it came from, which nobody asks for here. Where all steps of a pre-tokenizer
//! are known, the same words are found here by automata, and the rest is the library's: what is a
//! special token, and the merges.

use regex_automata::meta::Regex;
use regex_automata::{Anchored, Input, Match};
use regex_syntax::ast::{self, Ast, FlagsItemKind, GroupKind};
use regex_syntax::hir::translate::Translator;
use regex_syntax::hir::{Hir, HirKind};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;

use super::pieces::byte_level_alphabet;

/// How patterns end that give all whitespace before a word but its last character to a piece of its
/// own.
const WHITESPACE_BUT_ONE: &str = r"|\s+(?!\S)|\s+";
/// What the library's byte-level step splits by.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// A pre-tokenizer whose steps are all known.
#[derive(Debug)]
pub(super) struct Words {
    steps: Vec<Step>,
    /// The character that stands for each byte; `None` for those that are left out.
    alphabet: Vec<Option<char>>,
}

/// One step of splitting.
#[derive(Debug)]
enum Step {
    /// Every numeral is a piece.
    Numerals,
    /// Every match is a piece.
    Matches(Regex),
    /// The same for a pattern that ends in [`WHITESPACE_BUT_ONE`], without that end: the second pattern is
    /// whitespace.
    MatchesAndWhitespace(Regex),
}

impl Words {
    /// The same splitting as that pre-tokenizer's, if it is one of bytes and all its steps are known.
    pub(super) fn new(pre_tokenizer: &PreTokenizerWrapper) -> Option<Self> {
        let sequence = match pre_tokenizer {
            PreTokenizerWrapper::Sequence(sequence) => sequence.as_ref(),
            single => std::slice::from_ref(single),
        };
        let is_byte_level = |step: &PreTokenizerWrapper| matches!(step, PreTokenizerWrapper::ByteLevel(level) if !level.add_prefix_space);
        let (before, after) = sequence.split_at(sequence.iter().position(is_byte_level)?);
        let mut steps = before.iter().map(Step::new).collect::<Option<Vec<_>>>()?;
        let (level, after) = after.split_first()?;
        if matches!(level, PreTokenizerWrapper::ByteLevel(level) if level.use_regex) {
            steps.push(Step::matches(GPT2)?);
        }
        let mut alphabet = vec![None; 256];
        for (character, byte) in byte_level_alphabet() {
            alphabet[usize::from(byte)] = Some(character);
        }
        for step in after {
            let left_out = characters_left_out(step)?;
            let is_left_out = |kept: &Option<char>| kept.is_some_and(&left_out);
            alphabet.iter_mut().filter(|kept| is_left_out(kept)).for_each(|kept| *kept = None);
        }
        Some(Self { steps, alphabet })
    }

    /// Gives each word, in the characters of the vocabulary, to `take`, until that fails.
    pub(super) fn each<E>(
        &self,
        text: &str,
        mut take: impl FnMut(&str) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut word = String::new();
        split(&self.steps, text, &mut |piece| {
            for byte in piece.bytes() {
                match self.alphabet[usize::from(byte)] {
                    Some(character) => word.push(character),
                    None => flush(&mut word, &mut take)?,
                }
            }
            flush(&mut word, &mut take)
        })
    }
}

fn flush<E>(word: &mut String, take: &mut impl FnMut(&str) -> Result<(), E>) -> Result<(), E> {
    if !word.is_empty() {
        take(word)?;
        word.clear();
    }
    Ok(())
}

/// Splits by each step in turn; no piece is empty.
fn split<E>(
    steps: &[Step],
    text: &str,
    take: &mut dyn FnMut(&str) -> Result<(), E>,
) -> Result<(), E> {
    let Some((step, rest)) = steps.split_first() else {
        return if text.is_empty() { Ok(()) } else { take(text) };
    };
    let mut done = 0;
    while let Some((start, end)) = step.find(text, done) {
        split(rest, &text[done..start], take)?;
        split(rest, &text[start..end], take)?;
        done = end;
    }
    split(rest, &text[done..], take)
}

impl Step {
    fn new(step: &PreTokenizerWrapper) -> Option<Self> {
        match step {
            PreTokenizerWrapper::Digits(digits) if digits.individual_digits => Some(Self::Numerals),
            PreTokenizerWrapper::Split(Split {
                pattern: SplitPattern::Regex(pattern),
                behavior: SplitDelimiterBehavior::Isolated,
                invert: false,
                ..
            }) => Self::matches(pattern),
            _ => None,
        }
    }

    fn matches(pattern: &str) -> Option<Self> {
        let build = |patterns: &[Hir]| Regex::builder().build_many_from_hir(patterns).ok();
        match pattern.strip_suffix(WHITESPACE_BUT_ONE) {
            Some(words) => build(&[parse(words)?, parse(r"\s+")?]).map(Self::MatchesAndWhitespace),
            None => build(&[parse(pattern)?]).map(Self::Matches),
        }
    }

    /// The next piece that is a match, from `done` on.
    fn find(&self, text: &str, done: usize) -> Option<(usize, usize)> {
        match self {
            Self::Numerals => {
                let rest = text[done..].char_indices();
                let (at, numeral) = rest.into_iter().find(|(_, c)| c.is_numeric())?;
                Some((done + at, done + at + numeral.len_utf8()))
            }
            Self::Matches(regex) => {
                let found = next_match(regex, text, done)?;
                Some((found.start(), found.end()))
            }
            Self::MatchesAndWhitespace(regex) => {
                let found = next_match(regex, text, done)?;
                let last = text[found.range()].char_indices().next_back();
                let is_before_a_word = found.pattern().as_usize() == 1 && found.end() < text.len();
                match last {
                    Some((all_but_one, _)) if is_before_a_word && all_but_one > 0 => {
                        Some((found.start(), found.start() + all_but_one))
                    }
                    _ => Some((found.start(), found.end())),
                }
            }
        }
    }
}

/// The next match from `done` on. Most begin right there, and where one begins needs no search back then.
fn next_match(regex: &Regex, text: &str, done: usize) -> Option<Match> {
    let input = Input::new(text).range(done..);
    regex.find(input.clone().anchored(Anchored::Yes)).or_else(|| regex.find(input))
}

/// A pattern that an automaton can match, that never looks around, that never matches nothing, and that
/// means the same here as to the library's engine.
fn parse(pattern: &str) -> Option<Hir> {
    let ast = ast::parse::Parser::new().parse(pattern).ok()?;
    ast::visit(&ast, MeansTheSame).ok()?;
    let parsed = Translator::new().translate(pattern, &ast).ok()?;
    let properties = parsed.properties();
    let takes_something = properties.minimum_len().is_some_and(|least| least > 0);
    (takes_something && properties.look_set().is_empty()).then_some(parsed)
}

/// Refuses what the two engines read in different ways: a quantifier after a quantifier (`++` never gives
/// back what it took there, and repeats a repetition here), and flags, but for `(?i:…)`.
struct MeansTheSame;

/// It doesn't.
struct Refused;

impl ast::Visitor for MeansTheSame {
    type Output = ();
    type Err = Refused;

    fn finish(self) -> Result<(), Refused> {
        Ok(())
    }

    fn visit_pre(&mut self, ast: &Ast) -> Result<(), Refused> {
        let is_the_same = match ast {
            Ast::Flags(_) => false,
            Ast::Repetition(repetition) => !matches!(*repetition.ast, Ast::Repetition(_)),
            Ast::Group(group) => match &group.kind {
                GroupKind::NonCapturing(flags) => flags
                    .items
                    .iter()
                    .all(|item| item.kind == FlagsItemKind::Flag(ast::Flag::CaseInsensitive)),
                GroupKind::CaptureIndex(_) | GroupKind::CaptureName { .. } => true,
            },
            _ => true,
        };
        if is_the_same { Ok(()) } else { Err(Refused) }
    }
}

/// Which characters a step leaves out at which it splits words, if that is all it does.
fn characters_left_out(step: &PreTokenizerWrapper) -> Option<impl Fn(char) -> bool> {
    let PreTokenizerWrapper::Split(Split {
        pattern: SplitPattern::Regex(pattern),
        behavior: SplitDelimiterBehavior::Removed,
        invert: false,
        ..
    }) = step
    else {
        return None;
    };
    let parsed = parse(pattern)?;
    let is_one_character = match parsed.kind() {
        HirKind::Class(_) => true,
        HirKind::Literal(text) => {
            str::from_utf8(&text.0).is_ok_and(|text| text.chars().count() == 1)
        }
        _ => false,
    };
    let regex = is_one_character.then(|| Regex::builder().build_from_hir(&parsed).ok())??;
    Some(move |character: char| regex.is_match(&*character.encode_utf8(&mut [0; 4])))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tokenizers::tokenizer::{PreTokenizedString, PreTokenizer};
    use tokenizers::{OffsetReferential, OffsetType};

    use super::*;
    use crate::sampling::Rng;

    /// What texts of the test are made of, with bars between: whitespace of all kinds, words and letters
    /// of several scripts, contractions, numerals, and what is none of these.
    const SNIPPETS: &str = concat!(
        " | | |  |   |\n|\n\n|\r\n|\t| \n|\u{a0}|\u{3000}|\u{85}|\u{b}",
        "|a|The| quick|hello|HELLO|fooBar|'s|'S|'ll|'LL|don't|'ſ|\u{212a}|'|’s",
        "|é|É|e\u{301}|ǅ|ß|Привет|你好|日本|한국|हिन्दी|مرحبا|ไทย|\u{200b}|\u{fe0f}",
        "|1|12|1234567|3.14|½|٣|Ⅷ|²|!|!!|...|…|(|)|“|$|_|/|\\|-|`|🦀|👩\u{200d}👧",
        "|\0|\u{4}|\u{7f}|\u{ad}|\u{fffd}|\u{10ffff}",
    );

    fn isolated(pattern: &str) -> Value {
        json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
    }

    fn byte_level(use_regex: bool) -> Value {
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
    }

    fn left_out(pattern: &str) -> Value {
        json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Removed", "invert": false})
    }

    fn sequence(steps: &[Value]) -> PreTokenizerWrapper {
        serde_json::from_value(json!({"type": "Sequence", "pretokenizers": steps})).unwrap()
    }

    fn numerals() -> Value {
        json!({"type": "Digits", "individual_digits": true})
    }

    /// SmolLM2's, Llama 3's, Qwen 2's, GPT-4o's, DeepSeek's, and others of their kinds.
    fn known() -> Vec<PreTokenizerWrapper> {
        let llama3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
        let qwen2 = llama3.replace("{1,3}", "");
        let gpt4o = concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        );
        let intersections = r"[^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]*[\p{L}&&[^A-Z]]+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
        let (groups, han) = (isolated(r"\p{N}{1,3}"), isolated(r"[一-龥\x{3040}-ゟ゠-ヿ]+"));
        let words = isolated(
            r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        );
        vec![
            serde_json::from_value(byte_level(true)).unwrap(),
            sequence(&[numerals(), byte_level(true)]),
            sequence(&[numerals(), byte_level(true), left_out(r"[\x{104}]")]),
            sequence(&[isolated(llama3), byte_level(false), left_out(r"[\x{104}éĀ]")]),
            sequence(&[isolated(&qwen2), byte_level(false)]),
            sequence(&[isolated(gpt4o), byte_level(false)]),
            sequence(&[isolated(intersections), byte_level(false)]),
            sequence(&[groups, han, words, byte_level(false)]),
            sequence(&[isolated(r"[\r\n]"), isolated(r"\s?\p{L}+"), byte_level(false)]),
        ]
    }

    #[test]
    fn words_are_those_of_the_library() {
        let snippets: Vec<&str> = SNIPPETS.split('|').collect();
        let mut rng = Rng::new(7, 0);
        let mut below = |limit: usize| (rng.uniform() * limit as f64) as usize;
        for pre_tokenizer in known() {
            let words = Words::new(&pre_tokenizer).expect("steps that are known");
            for _ in 0..3000 {
                let text =
                    (0..below(12)).map(|_| snippets[below(snippets.len())]).collect::<String>();
                let mut expected = PreTokenizedString::from(text.as_str());
                pre_tokenizer.pre_tokenize(&mut expected).unwrap();
                let expected = expected.get_splits(OffsetReferential::Original, OffsetType::None);
                let expected =
                    expected.iter().map(|(word, _, _)| *word).filter(|word| !word.is_empty());
                let mut found = Vec::new();
                let taken = words.each(&text, |word| {
                    found.push(word.to_owned());
                    Ok::<_, ()>(())
                });
                assert_eq!(taken, Ok(()));
                assert_eq!(found, expected.collect::<Vec<_>>(), "{text:?} by {pre_tokenizer:?}");
            }
        }
    }

    #[test]
    fn what_an_automaton_cannot_do_is_left_to_the_library() {
        let unknown = [
            vec![isolated(r"(?<!\p{N})\p{N}{1,2}"), byte_level(false)],
            vec![isolated(r"\s+(?!\S)|\s+|a"), byte_level(false)],
            vec![isolated(r"a*"), byte_level(false)],
            vec![isolated(r"\bword\b"), byte_level(false)],
            vec![isolated(r"[^\r\n\p{L}]?+\p{L}+|\s+(?!\S)|\s+"), byte_level(false)],
            vec![isolated(r" ?[^\s\p{L}]++[\r\n]*|\s+(?!\S)|\s+"), byte_level(false)],
            vec![isolated(r"\p{N}{1,3}+"), byte_level(false)],
            vec![isolated(r"a{2}{3}"), byte_level(false)],
            vec![isolated(r"(?i)a|\s+(?!\S)|\s+"), byte_level(false)],
            vec![isolated(r"(?U:a+)b"), byte_level(false)],
            vec![isolated(r"(?x: [ a] )"), byte_level(false)],
            vec![isolated(r"a+")],
            vec![json!({"type": "Digits", "individual_digits": false}), byte_level(true)],
            vec![
                json!({"type": "Split", "pattern": {"Regex": "a"}, "behavior": "MergedWithNext", "invert": false}),
                byte_level(false),
            ],
            vec![
                json!({"type": "Split", "pattern": {"String": "a"}, "behavior": "Isolated", "invert": false}),
                byte_level(false),
            ],
            vec![
                json!({"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Isolated", "invert": true}),
                byte_level(false),
            ],
            vec![byte_level(true), left_out("ab")],
            vec![byte_level(true), numerals()],
            vec![
                json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
            ],
            vec![
                json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true}),
            ],
        ];
        for steps in unknown {
            assert!(Words::new(&sequence(&steps)).is_none(), "{steps:?}");
        }
    }

    #[test]
    fn an_error_ends_the_splitting() {
        let words = Words::new(&known()[0]).unwrap();
        let mut seen = 0;
        let ended = words.each("one two three", |word| {
            seen += 1;
            if word == "Ġtwo" { Err("enough") } else { Ok(()) }
        });
        assert_eq!((ended, seen), (Err("enough"), 2));
    }
}
