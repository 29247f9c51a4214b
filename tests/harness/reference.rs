//! What llama.cpp itself makes of a prompt, in this process: the reference for the server's answers.

use std::sync::{Arc, OnceLock};

use spinfer_llama::{Batch, Context, ContextParams, Model, ModelParams, Token};

use crate::models::weights;

/// The server's default batch: reference and server must compute the same chunks.
const BATCH: usize = 512;

/// A model and what it takes to decode with it.
pub struct Reference {
    /// The model.
    pub model: Arc<Model>,
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

impl Reference {
    /// The default model, loaded once.
    pub fn default_model() -> &'static Self {
        static REFERENCE: OnceLock<Reference> = OnceLock::new();
        REFERENCE.get_or_init(|| {
            let path = weights("smollm2-135m-instruct");
            let model = Model::load(&path, &ModelParams::default()).expect("the model loads");
            Self { model: Arc::new(model) }
        })
    }

    /// A context of `sequences` sequences of 1,024 tokens.
    pub fn context(&self, sequences: u32) -> Context {
        let threads = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
        let params = ContextParams {
            cells: 1024 * sequences,
            sequences,
            batch: BATCH as u32,
            micro_batch: BATCH as u32,
            outputs: 16,
            unified: false,
            threads,
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

    /// The text of generated tokens.
    pub fn text(&self, tokens: &[Token]) -> String {
        String::from_utf8_lossy(&self.model.detokenize(tokens, false, false)).into_owned()
    }
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
