//! [`ExecutionContext`] over wasi-nn, by the convention for causal language models.

use spinfer_protocol::columns::{Columns, Pass, RowTokens};
use spinfer_protocol::{ModelCard, tensor};
use wasi_nn::{ErrorCode, Graph, Tensor, TensorType};

use crate::generation::{
    BackendError, BackendErrorKind, ExecutionContext, Logits, Outputs, Reductions, Step, Wanted,
};

/// A context in the host.
pub enum Context {
    /// In one that keeps to the whole convention.
    Whole(WholeContext),
    /// In one that hands on what a model takes by itself.
    Plain(PlainContext),
}

impl Context {
    /// A new context for that model.
    pub fn open(card: &ModelCard) -> Result<Self, BackendError> {
        let graph = Graph::by_name(&card.id).map_err(backend_error)?;
        let context = graph.execution_context().map_err(backend_error)?;
        Ok(if card.takes(tensor::LOGITS_TO_KEEP) {
            Self::Whole(WholeContext(context))
        } else {
            Self::Plain(PlainContext { graph, context, columns: Columns::default(), is_new: true })
        })
    }
}

impl ExecutionContext for Context {
    fn reserve(&mut self, lengths: &[usize]) -> Result<(), BackendError> {
        match self {
            Self::Whole(context) => context.reserve(lengths),
            Self::Plain(context) => context.reserve(lengths),
        }
    }

    fn compute(&mut self, step: &Step<'_>, outputs: &mut Outputs) -> Result<(), BackendError> {
        match self {
            Self::Whole(context) => context.compute(step, outputs),
            Self::Plain(context) => context.compute(step, outputs),
        }
    }
}

/// A context in a host that keeps to the whole convention.
pub struct WholeContext(wasi_nn::ExecutionContext);

impl ExecutionContext for WholeContext {
    fn reserve(&mut self, lengths: &[usize]) -> Result<(), BackendError> {
        let lengths = lengths.iter().map(|length| *length as i64).collect::<Vec<_>>();
        let reserve = Tensor::from_i64(&[lengths.len() as u32], &lengths);
        self.0.compute(vec![(tensor::RESERVE, reserve)]).map(drop).map_err(backend_error)
    }

    fn compute(&mut self, step: &Step<'_>, outputs: &mut Outputs) -> Result<(), BackendError> {
        // What there was goes first: at any time, there is one row of logits for each row.
        *outputs = Outputs::default();
        let found = Found(self.0.compute(inputs(step)).map_err(backend_error)?);
        if step.cache_salt.is_some() {
            let cached = found.get(tensor::CACHED_TOKENS)?.to_i64().map_err(backend_error)?;
            outputs.cached_tokens = cached.into_iter().map(|count| count.max(0) as usize).sum();
        }
        let rows = step.tokens.len() as u32;
        match step.wanted {
            Wanted::Logits => {
                outputs.logits = found.logits_within_reach(rows)?;
                outputs.logits.fetch()
            }
            Wanted::Last { sums, scale, .. } => {
                found.reductions(&mut outputs.reductions, sums, false)?;
                if scale.is_some() {
                    let sums = found.get(tensor::WEIGHT_SUM)?.to_f64().map_err(backend_error)?;
                    outputs.reductions.weight_sums = sums;
                    outputs.logits = found.logits_within_reach(rows)?;
                }
                Ok(())
            }
            Wanted::Every { .. } => found.reductions(&mut outputs.reductions, true, true),
        }
    }
}

/// The outputs of a call.
struct Found(wasi_nn::Outputs);

impl Found {
    fn get(&self, name: &str) -> Result<&Tensor, BackendError> {
        self.0.get(name).ok_or_else(|| failed(&format!("there is no output `{name}`")))
    }

    /// The logits of so many rows, still in the host.
    fn logits_within_reach(self, rows: u32) -> Result<Logits, BackendError> {
        let [found, 1, vocab_size] = self.get(tensor::LOGITS)?.dimensions()[..] else {
            return Err(failed("the output `logits` isn't of the shape [B, 1, V]"));
        };
        if found != rows {
            return Err(failed("the output `logits` has another number of rows"));
        }
        let source = move || self.get(tensor::LOGITS)?.f32_bytes().map_err(backend_error);
        Ok(Logits::within_reach(Box::new(source), vocab_size as usize))
    }

    fn floats(&self, name: &str) -> Result<Vec<f32>, BackendError> {
        self.get(name)?.to_f32().map_err(backend_error)
    }

    fn reductions(
        &self,
        into: &mut Reductions,
        sums: bool,
        gathered: bool,
    ) -> Result<(), BackendError> {
        let [_, positions, top_k] = self.get(tensor::TOP_LOGITS)?.dimensions()[..] else {
            return Err(failed("the output `top_logits` isn't of the shape [B, K, k]"));
        };
        into.positions = positions as usize;
        into.top_k = top_k as usize;
        into.top_logits = self.floats(tensor::TOP_LOGITS)?;
        into.top_ids = self.get(tensor::TOP_IDS)?.to_i32().map_err(backend_error)?;
        if sums {
            into.log_sum_exp = self.floats(tensor::LOGSUMEXP)?;
        }
        if gathered {
            into.gathered = self.floats(tensor::GATHERED)?;
        }
        Ok(())
    }
}

/// The tensors of a step. Rows of unequal length are padded on the left, and masked there.
fn inputs(step: &Step<'_>) -> Vec<(&'static str, Tensor)> {
    let rows = step.tokens.len();
    let width = step.columns();
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
    let mut inputs = vec![(tensor::INPUT_IDS, Tensor::from_i64(&shape, &ids))];
    if mask.contains(&0) {
        inputs.push((tensor::ATTENTION_MASK, Tensor::from_i64(&shape, &mask)));
    }
    if let Some(parents) = step.parents {
        let parents = parents.iter().map(|parent| *parent as i32).collect::<Vec<_>>();
        inputs.push((tensor::BEAM_IDX, Tensor::from_i32(&[parents.len() as u32], &parents)));
    }
    if let Some(starts) = step.starts {
        let positions = starts.iter().zip(step.tokens).flat_map(|(start, tokens)| {
            let padding = std::iter::repeat_n(0, width - tokens.len());
            padding.chain((*start as i64..).take(tokens.len()))
        });
        let positions = positions.collect::<Vec<_>>();
        inputs.push((tensor::POSITION_IDS, Tensor::from_i64(&shape, &positions)));
    }
    let keep = match step.wanted {
        Wanted::Logits | Wanted::Last { .. } => 1,
        Wanted::Every { .. } => width as i64,
    };
    if let Some(salt) = step.cache_salt {
        let salt = Tensor::new(&[salt.len() as u32], TensorType::U8, salt.to_vec());
        inputs.push((tensor::CACHE_SALT, salt));
    }
    inputs.push((tensor::LOGITS_TO_KEEP, Tensor::from_i64(&[1], &[keep])));
    if let Wanted::Last { sums: false, .. } = step.wanted {
        inputs.push((tensor::LOGSUMEXP, Tensor::from_i32(&[1], &[0])));
    }
    if let Wanted::Last { scale: Some(scale), .. } = step.wanted {
        inputs
            .push((tensor::SCALE, Tensor::new(&[1], TensorType::Fp32, scale.to_le_bytes().into())));
    }
    if let Wanted::Last { top_k, .. } | Wanted::Every { top_k, .. } = step.wanted {
        inputs.push((tensor::TOP_K, Tensor::from_i32(&[1], &[top_k as i32])));
    }
    if let Wanted::Every { followed_by, .. } = step.wanted {
        let gather = step.tokens.iter().zip(followed_by).flat_map(|(tokens, followed_by)| {
            let padding = std::iter::repeat_n(0, width - tokens.len());
            // What nothing is wanted for can have any token.
            let wanted = followed_by.iter().map(|token| *token as i32).chain(std::iter::repeat(0));
            padding.chain(wanted.take(tokens.len()))
        });
        inputs.push((tensor::GATHER_IDS, Tensor::from_i32(&shape, &gather.collect::<Vec<_>>())));
    }
    inputs
}

/// The most new columns that a plain model is given at a time: it answers with the logits of all of them.
const PLAIN_COLUMNS: usize = 64;

/// A context in a host that hands tensors to a stateful model as they are: nothing can be reserved or
/// reduced there, and the memory is emptied by beginning another.
pub struct PlainContext {
    graph: Graph,
    context: wasi_nn::ExecutionContext,
    columns: Columns,
    /// Whether nothing was computed in it yet.
    is_new: bool,
}

impl ExecutionContext for PlainContext {
    fn reserve(&mut self, _: &[usize]) -> Result<(), BackendError> {
        Ok(())
    }

    fn compute(&mut self, step: &Step<'_>, outputs: &mut Outputs) -> Result<(), BackendError> {
        *outputs = Outputs::default();
        let Wanted::Logits = step.wanted else {
            return Err(failed("this host can't reduce logits"));
        };
        let rows: Vec<_> = step
            .tokens
            .iter()
            .enumerate()
            .map(|(at, tokens)| RowTokens {
                parent: step
                    .parents
                    .map_or(Some(at), |parents| Some(parents[at]))
                    .filter(|_| !self.is_new),
                start: step.starts.map_or_else(|| self.columns.length(at), |starts| starts[at]),
                tokens,
            })
            .collect();
        let mut logits = vec![Vec::new(); rows.len()];
        for pass in self.columns.passes(&rows, 1, PLAIN_COLUMNS) {
            self.run(&pass, &mut logits)?;
        }
        let vocab_size = logits.first().map_or(0, Vec::len);
        outputs.logits = Logits::from((logits.concat(), vocab_size));
        Ok(())
    }
}

impl PlainContext {
    /// Runs a pass, and puts the logits that are wanted into their places.
    fn run(&mut self, pass: &Pass, logits: &mut [Vec<f32>]) -> Result<(), BackendError> {
        if pass.anew && !self.is_new {
            self.context = self.graph.execution_context().map_err(backend_error)?;
        }
        self.is_new = false;
        let (rows, columns) = (pass.rows as u32, pass.columns as u32);
        let whole = pass.attention_mask.len() as u32 / rows.max(1);
        let inputs = vec![
            (tensor::INPUT_IDS, Tensor::from_i64(&[rows, columns], &pass.input_ids)),
            (tensor::ATTENTION_MASK, Tensor::from_i64(&[rows, whole], &pass.attention_mask)),
            (tensor::POSITION_IDS, Tensor::from_i64(&[rows, columns], &pass.position_ids)),
            (tensor::BEAM_IDX, Tensor::from_i32(&[rows], &pass.beam_idx)),
        ];
        let found = Found(self.context.compute(inputs).map_err(backend_error)?);
        if pass.kept.is_empty() {
            return Ok(());
        }
        // Some hosts name outputs by their numbers, and this is the only one.
        let output = found.get(tensor::LOGITS).or_else(|_| found.get("0"))?;
        let [_, _, vocab_size] = output.dimensions()[..] else {
            return Err(failed("the output `logits` isn't of the shape [B, S, V]"));
        };
        let (values, size) = (output.to_f32().map_err(backend_error)?, vocab_size as usize);
        for kept in &pass.kept {
            let row = values.get(kept.position * size..(kept.position + 1) * size);
            logits[kept.cell] =
                row.ok_or_else(|| failed("the output `logits` is too short"))?.to_vec();
        }
        Ok(())
    }
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
