//! [`ExecutionContext`] over wasi-nn, by the convention for causal language models.

use spinfer_protocol::tensor;
use wasi_nn::{ErrorCode, Graph, Tensor};

use crate::generation::{BackendError, BackendErrorKind, ExecutionContext, Logits, Step};

/// A context in the host.
pub struct Context(wasi_nn::ExecutionContext);

impl Context {
    /// A new context for the model of that id.
    pub fn open(model: &str) -> Result<Self, BackendError> {
        let graph = Graph::by_name(model).map_err(backend_error)?;
        graph.execution_context().map(Self).map_err(backend_error)
    }
}

impl ExecutionContext for Context {
    fn reserve(&mut self, lengths: &[usize]) -> Result<(), BackendError> {
        let lengths = lengths.iter().map(|length| *length as i64).collect::<Vec<_>>();
        let reserve = Tensor::from_i64(&[lengths.len() as u32], &lengths);
        self.0.compute(vec![(tensor::RESERVE, reserve)]).map(drop).map_err(backend_error)
    }

    fn compute(&mut self, step: &Step<'_>, logits: &mut Logits) -> Result<(), BackendError> {
        let outputs = self.0.compute(inputs(step)).map_err(backend_error)?;
        let output =
            outputs.get(tensor::LOGITS).ok_or_else(|| failed("there is no output `logits`"))?;
        let [rows, 1, vocab_size] = output.dimensions()[..] else {
            return Err(failed("the output `logits` isn't of the shape [B, 1, V]"));
        };
        if rows as usize != step.tokens.len() {
            return Err(failed("the output `logits` has another number of rows than the input"));
        }
        logits.vocab_size = vocab_size as usize;
        output.read_f32(&mut logits.values).map_err(backend_error)
    }
}

/// The tensors of a step. Rows of unequal length are padded on the left, and masked there.
fn inputs(step: &Step<'_>) -> Vec<(&'static str, Tensor)> {
    let rows = step.tokens.len();
    let width = step.tokens.iter().map(|tokens| tokens.len()).max().unwrap_or(0);
    let shape = [rows as u32, width as u32];
    let mut ids = Vec::with_capacity(rows * width);
    let mut mask = Vec::with_capacity(rows * width);
    for tokens in step.tokens {
        let padding = width - tokens.len();
        ids.extend(std::iter::repeat_n(0, padding));
        ids.extend(tokens.iter().map(|token| i64::from(*token)));
        mask.extend(std::iter::repeat_n(0, padding));
        mask.extend(std::iter::repeat_n(1, tokens.len()));
    }
    let mut inputs = vec![
        (tensor::INPUT_IDS, Tensor::from_i64(&shape, &ids)),
        (tensor::LOGITS_TO_KEEP, Tensor::from_i64(&[1], &[1])),
    ];
    if mask.contains(&0) {
        inputs.push((tensor::ATTENTION_MASK, Tensor::from_i64(&shape, &mask)));
    }
    if let Some(parents) = step.parents {
        let parents = parents.iter().map(|parent| *parent as i32).collect::<Vec<_>>();
        inputs.push((tensor::BEAM_IDX, Tensor::from_i32(&[parents.len() as u32], &parents)));
    }
    inputs
}

fn failed(message: &str) -> BackendError {
    BackendError { kind: BackendErrorKind::Failed, message: message.to_owned() }
}

fn backend_error(error: wasi_nn::Error) -> BackendError {
    let kind = match error.code {
        ErrorCode::Timeout => BackendErrorKind::Busy,
        ErrorCode::TooLarge => BackendErrorKind::TooLarge,
        // A model that may not be used is, to the client, one that isn't there.
        ErrorCode::NotFound | ErrorCode::Security => BackendErrorKind::NoModel,
        _ => BackendErrorKind::Failed,
    };
    let message = match kind {
        BackendErrorKind::TooLarge => error.data.trim_end_matches('.').to_owned(),
        _ => error.to_string().trim_end_matches('.').to_owned(),
    };
    BackendError { kind, message }
}
