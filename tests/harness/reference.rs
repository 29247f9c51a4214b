//! What llama.cpp itself makes of a prompt, in this process: the reference for the server's answers.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use spinfer_llama::{Batch, Context, ContextParams, KvType, Model, ModelParams, Token};

use crate::models::{Weights, weights};
use crate::server::{self, Backend};

/// The server's default batch: reference and server must compute the same chunks.
const BATCH: usize = 512;

/// A model and what it takes to decode with it.
pub struct Reference {
    /// The model.
    pub model: Arc<Model>,
    kv_type: KvType,
}

/// A greedy continuation.
pub struct Greedy {
    /// The generated tokens, without the one that ended it.
    pub tokens: Vec<Token>,
    /// For each of them, how far its logit was above the second best.
    pub margins: Vec<f32>,
    /// Its text.
    pub text: String,
    /// Whether an end-of-generation token ended it.
    pub ended: bool,
}

impl Greedy {
    /// Where another text leaves this one: by how much the logit of the token there was above the second
    /// best. None where the texts are the same.
    pub fn margin_of_difference(&self, reference: &Reference, other: &str) -> Option<f32> {
        if other == self.text {
            return None;
        }
        let same = other.bytes().zip(self.text.bytes()).take_while(|(a, b)| a == b).count();
        let end = |count: usize| reference.text(&self.tokens[..=count]).len();
        let last = self.tokens.len() - 1;
        let token = (0..last).find(|&count| end(count) >= same).unwrap_or(last);
        // Where that token ends, the text there may be another token's beginning, too: " " or " the".
        let next = if end(token) == same { (token + 1).min(last) } else { token };
        Some(self.margins[token].min(self.margins[next]))
    }
}

impl Reference {
    /// The default model as the backend that is tested computes it, loaded once: llama.cpp's answers are
    /// to be these to the last bit, and OpenVINO's those of single precision, but for rounding.
    pub fn default_model() -> &'static Self {
        static REFERENCE: OnceLock<Reference> = OnceLock::new();
        match server::backend() {
            Backend::Ggml => {
                REFERENCE.get_or_init(|| Self::load(&weights("smollm2-135m-instruct")))
            }
            Backend::Openvino => Self::single_precision(),
        }
    }

    /// The default model's weights, computed in single precision throughout, loaded once.
    pub fn single_precision() -> &'static Self {
        static REFERENCE: OnceLock<Reference> = OnceLock::new();
        REFERENCE.get_or_init(|| Self { kv_type: KvType::F32, ..Self::load(&Weights::F32.file()) })
    }

    /// The model of that file.
    pub fn load(path: &Path) -> Self {
        let model = Model::load(path, &ModelParams::default()).expect("the model loads");
        Self { model: Arc::new(model), kv_type: KvType::F16 }
    }

    /// A context of `sequences` sequences of 1,024 tokens.
    pub fn context(&self, sequences: u32) -> Context {
        self.context_with_outputs(sequences, 16)
    }

    fn context_with_outputs(&self, sequences: u32, outputs: u32) -> Context {
        let threads = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
        let params = ContextParams {
            cells: 1024 * sequences,
            sequences,
            batch: BATCH as u32,
            micro_batch: BATCH as u32,
            outputs,
            unified: false,
            threads,
            kv_type: self.kv_type,
        };
        Context::new(self.model.clone(), &params).expect("a context")
    }

    /// Appends tokens to a sequence, chunk by chunk; the last position's logits.
    pub fn append(&self, context: &mut Context, sequence: i32, tokens: &[Token]) -> Vec<f32> {
        let mut position = context.length(sequence);
        let mut logits = Vec::new();
        for (index, chunk) in tokens.chunks(BATCH).enumerate() {
            let last_chunk = (index + 1) * BATCH >= tokens.len();
            let mut batch = Batch::new();
            for (at, &token) in chunk.iter().enumerate() {
                batch.push(token, position, sequence, last_chunk && at == chunk.len() - 1);
                position += 1;
            }
            context.decode(&batch).expect("decodes");
            if last_chunk {
                logits = context.logits(chunk.len() - 1).expect("logits").to_vec();
            }
        }
        logits
    }

    /// The greedy continuation of a text prompt by at most `most` tokens.
    pub fn greedy(&self, prompt: &str, most: usize) -> Greedy {
        let ids = self.model.tokenize(prompt, true, true).expect("tokenizes");
        let ends = self.model.end_of_generation();
        let mut context = self.context(1);
        let mut logits = self.append(&mut context, 0, &ids);
        let mut greedy =
            Greedy { tokens: Vec::new(), margins: Vec::new(), text: String::new(), ended: false };
        while greedy.tokens.len() < most {
            let (token, margin) = best(&logits);
            if ends.contains(&token) {
                greedy.ended = true;
                break;
            }
            greedy.tokens.push(token);
            greedy.margins.push(margin);
            if greedy.tokens.len() < most {
                logits = self.append(&mut context, 0, &[token]);
            }
        }
        greedy.text = self.text(&greedy.tokens);
        greedy
    }

    /// The continuation of a prompt up to `length` tokens in all, by the likeliest tokens that don't
    /// end it: without the prompt.
    pub fn forced(&self, prompt: &[Token], length: usize) -> Vec<Token> {
        let ends = self.model.end_of_generation();
        let mut context = self.context(1);
        let mut logits = self.append(&mut context, 0, prompt);
        let mut tokens = Vec::new();
        while prompt.len() + tokens.len() < length {
            for &end in &ends {
                logits[end as usize] = f32::NEG_INFINITY;
            }
            let token = best(&logits).0;
            tokens.push(token);
            logits = self.append(&mut context, 0, &[token]);
        }
        tokens
    }

    /// The logits after each of the tokens, computed in one chunk.
    pub fn every_logits(&self, tokens: &[Token]) -> Vec<Vec<f32>> {
        assert!(tokens.len() <= BATCH, "one chunk");
        let mut context = self.context_with_outputs(1, tokens.len() as u32);
        let mut batch = Batch::new();
        for (position, &token) in tokens.iter().enumerate() {
            batch.push(token, position as u32, 0, true);
        }
        context.decode(&batch).expect("decodes");
        (0..tokens.len()).map(|index| context.logits(index).expect("logits").to_vec()).collect()
    }

    /// The largest difference of logits between what is computed alone and what is computed with
    /// others: the prompts in one batch, then a few steps of all.
    pub fn what_batching_moves(&self, prompts: &[Vec<Token>]) -> f32 {
        let moved = |alone: &[f32], batched: &[f32]| {
            alone.iter().zip(batched).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
        };
        let mut together = self.context(prompts.len() as u32);
        let mut singles: Vec<_> = prompts.iter().map(|_| self.context(1)).collect();
        let mut batch = Batch::new();
        let mut ends = Vec::new();
        for (sequence, ids) in prompts.iter().enumerate() {
            for (position, &id) in ids.iter().enumerate() {
                batch.push(id, position as u32, sequence as i32, position == ids.len() - 1);
            }
            ends.push((batch.len() - 1, self.append(&mut singles[sequence], 0, ids)));
        }
        together.decode(&batch).expect("decodes");
        let mut most = 0.0f32;
        let mut next = Vec::new();
        for (end, alone) in &ends {
            most = most.max(moved(alone, together.logits(*end).expect("logits")));
            next.push(best(alone).0);
        }
        for _ in 0..16 {
            let mut batch = Batch::new();
            for (sequence, &token) in next.iter().enumerate() {
                batch.push(token, together.length(sequence as i32), sequence as i32, true);
            }
            together.decode(&batch).expect("decodes");
            for (sequence, token) in next.iter_mut().enumerate() {
                let alone = self.append(&mut singles[sequence], 0, &[*token]);
                most = most.max(moved(&alone, together.logits(sequence).expect("logits")));
                *token = best(&alone).0;
            }
        }
        most
    }

    /// The bytes of one token, a control token's included.
    pub fn piece(&self, token: Token) -> Vec<u8> {
        self.model.detokenize(&[token], false, true)
    }

    /// The text of generated tokens.
    pub fn text(&self, tokens: &[Token]) -> String {
        String::from_utf8_lossy(&self.model.detokenize(tokens, false, false)).into_owned()
    }
}

/// The log-softmax of a row, in f64.
pub fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let above = |&logit: &f32| f64::from(logit) - f64::from(highest);
    let sum: f64 = logits.iter().map(|logit| above(logit).exp()).sum();
    logits.iter().map(|logit| above(logit) - sum.ln()).collect()
}

/// The token of the highest logit (the lowest id of equals), and how far it is above the second.
pub fn best(logits: &[f32]) -> (Token, f32) {
    let (mut token, mut first, mut second) = (0, f32::NEG_INFINITY, f32::NEG_INFINITY);
    for (id, &logit) in logits.iter().enumerate() {
        if logit > first {
            (token, second, first) = (id, first, logit);
        } else if logit > second {
            second = logit;
        }
    }
    (token as Token, first - second)
}
