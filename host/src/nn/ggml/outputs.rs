//! What a call is to bring, while its steps fill it in.

use spinfer_protocol::tensor as names;

use crate::nn::convention::{Step, Wanted};
use crate::nn::{Element, NamedTensor, Tensor};

/// The outputs of one call. What stands for padding is zeros.
#[derive(Debug, PartialEq)]
pub struct Outputs {
    /// B and K.
    rows: u32,
    keep: u32,
    kind: Kind,
    /// `[B]`, where anybody looked.
    cached: Option<Vec<i64>>,
}

#[derive(Debug, PartialEq)]
enum Kind {
    /// `[B, K, V]`, as the bytes of a tensor: at this size, a copy counts.
    Logits { vocab_size: u32, logits: Vec<u8> },
    Reductions {
        top: Option<Top>,
        gather: Option<Gather>,
        /// `[B, K]`.
        log_sum_exp: Vec<f32>,
    },
}

/// The most likely tokens: `[B, K, k]`.
#[derive(Debug, PartialEq)]
struct Top {
    k: u32,
    ids: Vec<i32>,
    logits: Vec<f32>,
}

/// Given tokens and their logits: `[B, K]`.
#[derive(Debug, PartialEq)]
struct Gather {
    ids: Vec<i32>,
    logits: Vec<f32>,
}

/// Buffers for reducing rows.
#[derive(Debug, Default)]
pub struct Scratch {
    candidates: Vec<spinfer_logits::Candidate>,
    weights: Vec<f32>,
}

impl Outputs {
    /// The outputs of a call over a vocabulary, to be filled in. `cached` are the tokens of each row
    /// that need not be computed, where the call asks for them.
    pub fn new(step: &Step, vocab_size: u32, cached: Option<&[usize]>) -> Self {
        let (rows, keep) = (step.rows.len() as u32, step.keep);
        let cells = rows as usize * keep as usize;
        let kind = match &step.wanted {
            Wanted::Logits => {
                Kind::Logits { vocab_size, logits: vec![0; cells * vocab_size as usize * 4] }
            }
            Wanted::Reductions { top_k, gather } => Kind::Reductions {
                top: top_k.map(|k| Top {
                    k,
                    ids: vec![0; cells * k as usize],
                    logits: vec![0.0; cells * k as usize],
                }),
                gather: gather
                    .as_ref()
                    .map(|ids| Gather { ids: ids.clone(), logits: vec![0.0; cells] }),
                log_sum_exp: vec![0.0; cells],
            },
        };
        let cached = cached.map(|cached| cached.iter().map(|&count| count as i64).collect());
        Self { rows, keep, kind, cached }
    }

    /// K.
    pub fn keep(&self) -> usize {
        self.keep as usize
    }

    /// Takes the logits of one position; `cell` counts through `[B, K]`.
    pub fn put(&mut self, cell: usize, row: &[f32], scratch: &mut Scratch) {
        match &mut self.kind {
            Kind::Logits { logits, .. } => {
                let bytes: &[u8] = bytemuck::cast_slice(row);
                logits[cell * bytes.len()..(cell + 1) * bytes.len()].copy_from_slice(bytes);
            }
            Kind::Reductions { top, gather, log_sum_exp } => {
                if let Some(Top { k, ids, logits }) = top {
                    let range = cell * *k as usize..(cell + 1) * *k as usize;
                    spinfer_logits::top(row, *k as usize, &mut scratch.candidates);
                    let found = scratch.candidates.iter().map(|(id, logit)| (*id as i32, *logit));
                    let found = found.chain(std::iter::repeat((-1, f32::NEG_INFINITY)));
                    let places = ids[range.clone()].iter_mut().zip(&mut logits[range]);
                    for ((id, logit), found) in places.zip(found) {
                        (*id, *logit) = found;
                    }
                }
                if let Some(Gather { ids, logits }) = gather {
                    logits[cell] = row[ids[cell] as usize];
                }
                log_sum_exp[cell] = spinfer_logits::log_sum_exp(row, &mut scratch.weights);
            }
        }
    }

    /// The outputs by their names; none when nothing was kept.
    pub fn into_tensors(mut self) -> Vec<NamedTensor> {
        let cached = self.cached.take().map(|cached| {
            let data = bytemuck::cast_slice(&cached).to_vec();
            let tensor = Tensor::new(vec![self.rows], Element::I64, data);
            (names::CACHED_TOKENS.to_owned(), tensor)
        });
        let mut tensors = self.computed();
        tensors.extend(cached);
        tensors
    }

    fn computed(self) -> Vec<NamedTensor> {
        let (rows, keep) = (self.rows, self.keep);
        if rows == 0 || keep == 0 {
            return Vec::new();
        }
        let floats = |name: &str, dimensions: &[u32], data: &[f32]| {
            (name.to_owned(), Tensor::from_f32(dimensions.to_vec(), data))
        };
        match self.kind {
            Kind::Logits { vocab_size, logits } => {
                let dimensions = vec![rows, keep, vocab_size];
                let tensor = Tensor::new(dimensions, Element::Fp32, logits);
                vec![(names::LOGITS.to_owned(), tensor)]
            }
            Kind::Reductions { top, gather, log_sum_exp } => {
                let mut tensors = vec![floats(names::LOGSUMEXP, &[rows, keep], &log_sum_exp)];
                if let Some(Top { k, ids, logits }) = top {
                    let dimensions = vec![rows, keep, k];
                    let data = bytemuck::cast_slice(&ids).to_vec();
                    tensors.push(floats(names::TOP_LOGITS, &dimensions, &logits));
                    let ids = Tensor::new(dimensions, Element::I32, data);
                    tensors.push((names::TOP_IDS.to_owned(), ids));
                }
                if let Some(Gather { logits, .. }) = gather {
                    tensors.push(floats(names::GATHERED, &[rows, keep], &logits));
                }
                tensors
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::convention::RowStep;

    fn step(rows: usize, keep: u32, wanted: Wanted) -> Step {
        let rows = vec![RowStep { parent: None, start: 0, tokens: vec![1; keep as usize] }; rows];
        Step { rows, keep, wanted, columns: keep }
    }

    fn get(tensors: &[NamedTensor], name: &str) -> (Vec<u32>, Vec<f32>) {
        let (_, tensor) = tensors.iter().find(|(found, _)| found == name).expect(name);
        let (floats, _) = tensor.data.as_chunks::<4>();
        let values = floats.iter().map(|bytes| match tensor.element {
            Element::I32 => i32::from_le_bytes(*bytes) as f32,
            _ => f32::from_le_bytes(*bytes),
        });
        (tensor.dimensions.clone(), values.collect())
    }

    #[test]
    fn logits_are_laid_out_by_position() {
        let mut outputs = Outputs::new(&step(2, 1, Wanted::Logits), 2, None);
        outputs.put(1, &[3.0, 4.0], &mut Scratch::default());
        let tensors = outputs.into_tensors();
        assert_eq!(get(&tensors, "logits"), (vec![2, 1, 2], vec![0.0, 0.0, 3.0, 4.0]));
    }

    #[test]
    fn reductions_are_those_of_each_row() {
        let gather = Some(vec![0, 2, 1, 1]);
        let wanted = Wanted::Reductions { top_k: Some(2), gather };
        let mut outputs = Outputs::new(&step(2, 2, wanted), 3, None);
        let mut scratch = Scratch::default();
        outputs.put(1, &[1.0, 3.0, 2.0], &mut scratch);
        outputs.put(3, &[f32::NAN, 0.0, f32::NAN], &mut scratch);
        let tensors = outputs.into_tensors();
        let none = f32::NEG_INFINITY;
        assert_eq!(
            get(&tensors, "top_ids"),
            (vec![2, 2, 2], vec![0.0, 0.0, 1.0, 2.0, 0.0, 0.0, 1.0, -1.0])
        );
        assert_eq!(get(&tensors, "top_logits").1, [0.0, 0.0, 3.0, 2.0, 0.0, 0.0, 0.0, none]);
        assert_eq!(get(&tensors, "gathered"), (vec![2, 2], vec![0.0, 2.0, 0.0, 0.0]));
        let (_, sums) = get(&tensors, "logsumexp");
        assert!((sums[1] - 3.407_606).abs() < 1e-6 && sums[3] == 0.0, "{sums:?}");
    }

    #[test]
    fn nothing_kept_is_no_output() {
        assert_eq!(Outputs::new(&step(1, 0, Wanted::Logits), 3, None).into_tensors(), []);
        let told = Outputs::new(&step(1, 0, Wanted::Logits), 3, Some(&[7])).into_tensors();
        assert_eq!((told.len(), told[0].0.as_str()), (1, "cached_tokens"));
        assert_eq!(told[0].1.to_i64("cached_tokens"), Ok(vec![7]));
    }
}
