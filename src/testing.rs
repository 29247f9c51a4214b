//! What the unit tests share: tokenizers small enough to read, and models that compute by rule.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use serde_json::json;
use spinfer_protocol::{Backend, FimTokens, ModelCard, tensor};

use crate::answer::ByteSink;
use crate::generation::{
    BackendError, BackendErrorKind, ClientGone, ExecutionContext, Logits, Outputs, Step, Wanted,
};
use crate::models::{Library, Model};
use crate::service::Platform;
use crate::tokenizer::{TokenId, Tokenizer};

/// Runs a future that never waits for anything.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("a future of the tests waits"),
    }
}

/// Begin and end of sequence, as in SmolLM2.
pub const SPECIALS: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
/// Where the bytes begin in both vocabularies, after the special tokens.
const FIRST_BYTE: TokenId = 3;

/// The token of one byte, in both vocabularies.
pub fn byte(byte: u8) -> TokenId {
    FIRST_BYTE + TokenId::from(byte)
}

fn added_tokens() -> serde_json::Value {
    SPECIALS
        .iter()
        .enumerate()
        .map(|(id, content)| {
            json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true})
        })
        .collect()
}

/// A vocabulary of the specials, 256 bytes, and `hello` built up by merges from `he`.
fn vocabulary(byte: impl Fn(u8) -> String, extra: &[&str]) -> BTreeMap<String, TokenId> {
    let specials = SPECIALS.iter().map(|special| (*special).to_owned());
    let bytes = (0..=u8::MAX).map(byte);
    let extra = extra.iter().map(|token| (*token).to_owned());
    specials.chain(bytes).chain(extra).zip(0..).collect()
}

/// The `tokenizer.json` of a byte-level vocabulary.
pub fn byte_level_json() -> String {
    let mut moved = 0x100;
    let alphabet = (0..=u8::MAX)
        .map(|byte| match byte {
            b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
            _ => {
                moved += 1;
                char::from_u32(moved - 1).unwrap()
            }
        })
        .map(String::from)
        .collect::<Vec<_>>();
    let vocab = vocabulary(
        |byte| alphabet[usize::from(byte)].clone(),
        &["he", "ll", "hell", "hello", "Ġhello"],
    );
    json!({
        "version": "1.0", "added_tokens": added_tokens(), "normalizer": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": true},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        ]},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocab, "merges": ["h e", "l l", "he ll", "hell o", "Ġ hello"]},
    })
    .to_string()
}

/// The `tokenizer.json` of a vocabulary like SentencePiece's, with bytes for what it lacks.
pub fn byte_fallback_json() -> String {
    let extra = ["▁", "h", "e", "l", "o", "he", "ll", "hell", "hello", "▁hello", "<unk>"];
    let vocab = vocabulary(|byte| format!("<0x{byte:02X}>"), &extra);
    json!({
        "version": "1.0", "added_tokens": added_tokens(),
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
        ]},
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true, "vocab": vocab,
            "merges": ["h e", "l l", "he ll", "hell o", "▁ hello"]},
    })
    .to_string()
}

const VOCAB_SIZE: usize = 300;

/// A byte-level tokenizer.
pub fn byte_level() -> Tokenizer {
    Tokenizer::from_json(byte_level_json().as_bytes(), VOCAB_SIZE).unwrap()
}

/// A tokenizer like SentencePiece's.
pub fn byte_fallback() -> Tokenizer {
    Tokenizer::from_json(byte_fallback_json().as_bytes(), VOCAB_SIZE).unwrap()
}

/// The facts about a small model.
pub fn card(id: &str) -> ModelCard {
    ModelCard {
        id: id.into(),
        aliases: vec![],
        created: 1_700_000_000,
        backend: Backend::Ggml,
        inputs: vec![tensor::TOP_K.into(), tensor::GATHER_IDS.into()],
        rewinds: true,
        context: 256,
        max_rows: 4,
        vocab_size: VOCAB_SIZE as u32,
        bos: Some(1),
        eos: Some(2),
        pad: None,
        end_of_generation: vec![0, 2],
        add_bos: false,
        add_eos: false,
        fim: None,
        chat_template: None,
    }
}

/// The facts about a small model that can fill gaps.
pub fn fim_card(id: &str) -> ModelCard {
    let fim = FimTokens { prefix: byte(b'{'), suffix: byte(b'|'), middle: byte(b'}') };
    ModelCard { fim: Some(fim), ..card(id) }
}

/// A small model.
pub fn model() -> Model {
    Model { card: card("m"), tokenizer: byte_level() }
}

/// How a fake model continues a row: its logits from the row's tokens so far.
pub type Rule = fn(&[TokenId]) -> Vec<f32>;

/// Logits that leave no doubt about the next token.
pub fn certain(token: TokenId) -> Vec<f32> {
    let mut logits = vec![-100.0; VOCAB_SIZE];
    logits[token as usize] = 0.0;
    logits
}

/// Logits that differ from token to token and from row to row, over the letters a to z.
pub fn letters(tokens: &[TokenId]) -> Vec<f32> {
    let mut state =
        tokens.iter().fold(17_u32, |state, token| state.wrapping_mul(31).wrapping_add(*token));
    let mut logits = vec![-100.0; VOCAB_SIZE];
    for letter in b'a'..=b'z' {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        logits[byte(letter) as usize] = (state >> 24) as f32 / 100.0;
    }
    logits
}

/// What a fake model that caches has of every request.
pub const CACHED_TOKENS: usize = 2;

/// A context that keeps to the convention, and panics where its user doesn't.
#[derive(Debug)]
pub struct FakeContext {
    rule: Rule,
    reserved: Option<Vec<usize>>,
    rows: Vec<Vec<TokenId>>,
    /// Steps until one fails.
    fails_after: Option<usize>,
    steps: usize,
    computed: usize,
    /// Whether rows can be cut elsewhere than at their beginning.
    pub rewinds: bool,
}

impl FakeContext {
    /// A context of a model that follows the rule.
    pub fn new(rule: Rule) -> Self {
        Self {
            rule,
            reserved: None,
            rows: vec![],
            fails_after: None,
            steps: 0,
            computed: 0,
            rewinds: true,
        }
    }

    /// The number of steps computed.
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// The number of tokens computed.
    pub fn computed(&self) -> usize {
        self.computed
    }
}

impl ExecutionContext for FakeContext {
    fn reserve(&mut self, lengths: &[usize]) -> Result<(), BackendError> {
        assert!(self.reserved.is_none() && self.rows.is_empty(), "reserved before, once");
        assert!(!lengths.is_empty());
        self.reserved = Some(lengths.to_vec());
        Ok(())
    }

    fn compute(&mut self, step: &Step<'_>, outputs: &mut Outputs) -> Result<(), BackendError> {
        let reserved = self.reserved.as_ref().expect("reserved first");
        if self.fails_after == Some(self.steps) {
            return Err(BackendError {
                kind: BackendErrorKind::Failed,
                message: "out of order".into(),
            });
        }
        self.steps += 1;
        if let Some(parents) = step.parents {
            self.rows = parents.iter().map(|parent| self.rows[*parent].clone()).collect();
        } else if self.rows.is_empty() {
            self.rows = vec![vec![]; step.tokens.len()];
        }
        outputs.cached_tokens = 0;
        if let Some(salt) = step.cache_salt {
            assert_eq!((salt, self.steps), (&[7][..], 1), "the caller's, in the first step");
            outputs.cached_tokens = CACHED_TOKENS;
        }
        assert_eq!(self.rows.len(), step.tokens.len(), "a row of tokens for each row");
        assert!(self.rows.len() <= reserved.len());
        for (row, start) in self.rows.iter_mut().zip(step.starts.unwrap_or_default()) {
            assert!(*start <= row.len(), "rows are cut, not stretched");
            assert!(self.rewinds || [0, row.len()].contains(start), "memory can't be cut");
            row.truncate(*start);
        }
        assert!(step.tokens.iter().all(|tokens| !tokens.is_empty()), "each row does something");
        let mut logits = Vec::new();
        for (row, tokens) in self.rows.iter_mut().zip(step.tokens) {
            let mut after = Vec::new();
            for token in *tokens {
                row.push(*token);
                self.computed += 1;
                after.push((self.rule)(row));
            }
            logits.push(after);
        }
        let mut lengths = self.rows.iter().map(Vec::len).collect::<Vec<_>>();
        let mut room = reserved.clone();
        lengths.sort_unstable();
        room.sort_unstable();
        let fits = lengths.iter().rev().zip(room.iter().rev()).all(|(length, room)| length <= room);
        assert!(fits, "within the reservation: {lengths:?} in {room:?}");
        match step.wanted {
            Wanted::Logits => {
                let last = logits.iter().flat_map(|row| row.last().expect("a new token"));
                outputs.logits = Logits::from((last.copied().collect(), VOCAB_SIZE));
            }
            Wanted::Last { top_k, .. } | Wanted::Every { top_k, .. } => {
                let followed_by = match step.wanted {
                    Wanted::Every { followed_by, .. } => followed_by,
                    _ => &[],
                };
                reduce(step.positions(), top_k, followed_by, &logits, outputs);
                if let Wanted::Last { sums: false, .. } = step.wanted {
                    outputs.reductions.log_sum_exp.clear();
                }
                if let Wanted::Last { scale: Some(scale), .. } = step.wanted {
                    let last = || logits.iter().flat_map(|row| row.last());
                    let sum = |row| spinfer_logits::weight_sum(row, scale, &mut Vec::new());
                    outputs.reductions.weight_sums = last().map(|row| sum(row)).collect();
                    let bytes = last().flatten().flat_map(|logit| logit.to_le_bytes()).collect();
                    outputs.logits = Logits::within_reach(Box::new(|| Ok(bytes)), VOCAB_SIZE);
                }
            }
        }
        Ok(())
    }
}

/// The reductions of a host: `logits` after each new token of each row, padded on the left.
fn reduce(
    positions: usize,
    top_k: usize,
    followed_by: &[&[TokenId]],
    logits: &[Vec<Vec<f32>>],
    outputs: &mut Outputs,
) {
    let reductions = &mut outputs.reductions;
    *reductions = Default::default();
    reductions.positions = positions;
    reductions.top_k = top_k;
    for (row, after) in logits.iter().enumerate() {
        let kept = after.len().min(positions);
        let padding = positions - kept;
        reductions.top_ids.extend(std::iter::repeat_n(77, padding * top_k));
        reductions.top_logits.extend(std::iter::repeat_n(77.0, padding * top_k));
        if !followed_by.is_empty() {
            reductions.gathered.extend(std::iter::repeat_n(77.0, padding));
        }
        reductions.log_sum_exp.extend(std::iter::repeat_n(77.0, padding));
        for (at, logits) in after.iter().enumerate().skip(after.len() - kept) {
            let mut top = Vec::new();
            spinfer_logits::top(logits, top_k, &mut top);
            top.resize(top_k, (TokenId::MAX, f32::NEG_INFINITY));
            reductions.top_ids.extend(top.iter().map(|(id, _)| *id as i32));
            reductions.top_logits.extend(top.iter().map(|(_, logit)| *logit));
            if let Some(ids) = followed_by.get(row) {
                reductions.gathered.push(logits[ids.get(at).copied().unwrap_or(0) as usize]);
            }
            reductions.log_sum_exp.push(spinfer_logits::log_sum_exp(logits, &mut Vec::new()));
        }
    }
}

/// A platform with the models `m` (byte-level), `fallback`, `fim` (which fills gaps) and `caching`; all
/// follow one rule.
pub struct FakePlatform {
    library: &'static Library,
    rule: Rule,
    random: Cell<u64>,
    /// What opening a context fails with.
    pub open_error: RefCell<Option<BackendError>>,
    /// After how many steps computing fails.
    pub fails_after: Cell<Option<usize>>,
    /// What was logged.
    pub logged: RefCell<Vec<String>>,
}

impl FakePlatform {
    pub fn new(rule: Rule) -> Self {
        let fallback = Model { card: card("fallback"), tokenizer: byte_fallback() };
        let fim = Model { card: fim_card("fim"), tokenizer: byte_level() };
        let mut caching = Model { card: card("caching"), tokenizer: byte_level() };
        caching.card.inputs.push(tensor::CACHE_SALT.into());
        let library = Library::from_models(vec![model(), fallback, fim, caching]);
        Self {
            library: Box::leak(Box::new(library)),
            rule,
            random: Cell::new(0),
            open_error: RefCell::new(None),
            fails_after: Cell::new(None),
            logged: RefCell::default(),
        }
    }
}

impl Platform for FakePlatform {
    type Context = FakeContext;

    fn library(&self) -> &'static Library {
        self.library
    }

    fn open(&self, model: &ModelCard) -> Result<FakeContext, BackendError> {
        assert!(["m", "fallback", "fim", "caching"].contains(&model.id.as_str()));
        match self.open_error.take() {
            Some(error) => Err(error),
            None => Ok(FakeContext {
                fails_after: self.fails_after.get(),
                ..FakeContext::new(self.rule)
            }),
        }
    }

    fn random(&self) -> u64 {
        self.random.set(self.random.get() + 1);
        self.random.get().wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    fn now(&self) -> u64 {
        1_800_000_000
    }

    fn caller(&self) -> Vec<u8> {
        vec![7]
    }

    fn log(&self, line: &str) {
        self.logged.borrow_mut().push(line.to_owned());
    }
}

/// A body in memory, whose reader may leave.
#[derive(Debug, Default)]
pub struct FakeBody<'a> {
    pub written: Option<&'a RefCell<Vec<String>>>,
    /// Writes that are still taken.
    pub leaves_after: Option<usize>,
}

impl ByteSink for FakeBody<'_> {
    async fn write(&mut self, bytes: Vec<u8>) -> Result<(), ClientGone> {
        if let Some(left) = &mut self.leaves_after {
            *left = left.checked_sub(1).ok_or(ClientGone)?;
        }
        if let Some(written) = self.written {
            written.borrow_mut().push(String::from_utf8(bytes).unwrap());
        }
        Ok(())
    }
}
