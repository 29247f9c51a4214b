//! What a call is to bring, while its steps fill it in.

use std::cell::RefCell;

use spinfer_protocol::tensor as names;

use crate::nn::convention::{Scale, Step, Wanted};
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
    Logits(Rows),
    Reductions(Reductions),
    /// Reductions beside the logits that they are of. They are made by whoever waits for them, and not
    /// while all others wait.
    Both {
        rows: Rows,
        scale: f32,
        reductions: Reductions,
        weight_sums: Vec<f64>,
    },
}

/// `[B, K, V]`: the bytes of each position's logits, empty where there is padding. At this size, a copy
/// counts.
#[derive(Debug, PartialEq)]
struct Rows {
    vocab_size: u32,
    logits: Vec<Vec<u8>>,
}

#[derive(Debug, PartialEq)]
struct Reductions {
    top: Option<Top>,
    gather: Option<Gather>,
    /// `[B, K]`.
    log_sum_exp: Option<Vec<f32>>,
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
        let rows_of_logits = || Rows { vocab_size, logits: vec![Vec::new(); cells] };
        let kind = match &step.wanted {
            Wanted::Logits => Kind::Logits(rows_of_logits()),
            Wanted::Reductions { top_k, gather, log_sum_exp, scale } => {
                let reductions = Reductions {
                    top: top_k.map(|k| Top {
                        k,
                        ids: vec![0; cells * k as usize],
                        logits: vec![0.0; cells * k as usize],
                    }),
                    gather: gather
                        .as_ref()
                        .map(|ids| Gather { ids: ids.clone(), logits: vec![0.0; cells] }),
                    log_sum_exp: log_sum_exp.then(|| vec![0.0; cells]),
                };
                match scale {
                    None => Kind::Reductions(reductions),
                    Some(Scale(scale)) => Kind::Both {
                        rows: rows_of_logits(),
                        scale: *scale,
                        reductions,
                        weight_sums: vec![0.0; cells],
                    },
                }
            }
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
            Kind::Logits(rows) | Kind::Both { rows, .. } => rows.put(cell, row),
            Kind::Reductions(reductions) => reductions.put(cell, row, scratch),
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
        let shape = vec![self.rows, self.keep];
        if shape.contains(&0) {
            return Vec::new();
        }
        match self.kind {
            Kind::Logits(rows) => vec![rows.into_tensor(shape)],
            Kind::Reductions(reductions) => reductions.into_tensors(&shape),
            Kind::Both { rows, scale, mut reductions, mut weight_sums } => {
                thread_local! {
                    static SCRATCH: RefCell<Scratch> = RefCell::default();
                }
                SCRATCH.with_borrow_mut(|scratch| {
                    let computed = |cell: &usize| !rows.logits[*cell].is_empty();
                    for cell in (0..weight_sums.len()).filter(computed) {
                        let sum = &mut weight_sums[cell];
                        rows.with(cell, |row| {
                            reductions.put(cell, row, scratch);
                            *sum = spinfer_logits::weight_sum(row, scale, &mut scratch.weights);
                        });
                    }
                });
                let mut tensors = reductions.into_tensors(&shape);
                let sums = bytemuck::cast_slice(&weight_sums).to_vec();
                let sums = Tensor::new(shape.clone(), Element::Fp64, sums);
                tensors.push((names::WEIGHT_SUM.to_owned(), sums));
                tensors.push(rows.into_tensor(shape));
                tensors
            }
        }
    }
}

impl Rows {
    fn put(&mut self, cell: usize, row: &[f32]) {
        self.logits[cell] = bytemuck::cast_slice(row).to_vec();
    }

    fn with(&self, cell: usize, read: impl FnOnce(&[f32])) {
        let bytes = &self.logits[cell];
        match bytemuck::try_cast_slice(bytes) {
            Ok(row) => read(row),
            // No allocator gives so many bytes a place where floats may not be.
            Err(_) => {
                let (floats, _) = bytes.as_chunks::<4>();
                read(&floats.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect::<Vec<_>>());
            }
        }
    }

    fn into_tensor(mut self, mut shape: Vec<u32>) -> NamedTensor {
        shape.push(self.vocab_size);
        let length = self.vocab_size as usize * 4;
        let data = match &mut self.logits[..] {
            // One row, as most contexts have, is handed on as it is.
            [row] if row.len() == length => std::mem::take(row),
            rows => {
                let mut data = Vec::with_capacity(rows.len() * length);
                for row in rows {
                    data.extend_from_slice(row);
                    data.resize(data.len() + length - row.len(), 0);
                }
                data
            }
        };
        (names::LOGITS.to_owned(), Tensor::new(shape, Element::Fp32, data))
    }
}

impl Reductions {
    fn put(&mut self, cell: usize, row: &[f32], scratch: &mut Scratch) {
        if let Some(Top { k, ids, logits }) = &mut self.top {
            let range = cell * *k as usize..(cell + 1) * *k as usize;
            spinfer_logits::top(row, *k as usize, &mut scratch.candidates);
            let found = scratch.candidates.iter().map(|(id, logit)| (*id as i32, *logit));
            let found = found.chain(std::iter::repeat((-1, f32::NEG_INFINITY)));
            let places = ids[range.clone()].iter_mut().zip(&mut logits[range]);
            for ((id, logit), found) in places.zip(found) {
                (*id, *logit) = found;
            }
        }
        if let Some(Gather { ids, logits }) = &mut self.gather {
            logits[cell] = row[ids[cell] as usize];
        }
        if let Some(sums) = &mut self.log_sum_exp {
            sums[cell] = spinfer_logits::log_sum_exp(row, &mut scratch.weights);
        }
    }

    fn into_tensors(self, shape: &[u32]) -> Vec<NamedTensor> {
        let floats = |name: &str, dimensions: &[u32], data: &[f32]| {
            (name.to_owned(), Tensor::from_f32(dimensions.to_vec(), data))
        };
        let mut tensors = Vec::new();
        if let Some(sums) = self.log_sum_exp {
            tensors.push(floats(names::LOGSUMEXP, shape, &sums));
        }
        if let Some(Top { k, ids, logits }) = self.top {
            let dimensions = [shape, &[k]].concat();
            let data = bytemuck::cast_slice(&ids).to_vec();
            tensors.push(floats(names::TOP_LOGITS, &dimensions, &logits));
            tensors.push((names::TOP_IDS.to_owned(), Tensor::new(dimensions, Element::I32, data)));
        }
        if let Some(Gather { logits, .. }) = self.gather {
            tensors.push(floats(names::GATHERED, shape, &logits));
        }
        tensors
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
        let wanted = Wanted::Reductions { top_k: Some(2), gather, log_sum_exp: true, scale: None };
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
    fn sums_are_left_out_where_nobody_reads_them() {
        let wanted =
            Wanted::Reductions { top_k: Some(1), gather: None, log_sum_exp: false, scale: None };
        let mut outputs = Outputs::new(&step(1, 1, wanted), 2, None);
        outputs.put(0, &[1.0, 3.0], &mut Scratch::default());
        let mut names =
            outputs.into_tensors().into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        names.sort();
        assert_eq!(names, ["top_ids", "top_logits"]);
    }

    #[test]
    fn logits_come_beside_what_they_are_reduced_to() {
        let scale = Some(Scale(2.0));
        let wanted = Wanted::Reductions { top_k: Some(1), gather: None, log_sum_exp: true, scale };
        let mut outputs = Outputs::new(&step(1, 1, wanted), 2, None);
        outputs.put(0, &[1.0, 0.0], &mut Scratch::default());
        let tensors = outputs.into_tensors();
        assert_eq!(get(&tensors, "top_ids"), (vec![1, 1, 1], vec![0.0]));
        assert_eq!(get(&tensors, "logits"), (vec![1, 1, 2], vec![1.0, 0.0]));
        let (_, sums) = tensors.iter().find(|(name, _)| name == "weight_sum").unwrap();
        let sum = f64::from_le_bytes(sums.data[..].try_into().unwrap());
        assert_eq!((&sums.dimensions[..], sums.element), (&[1, 1][..], Element::Fp64));
        assert!((sum - 1.135_335_3).abs() < 1e-6, "1 + exp(-2), not {sum}");
    }

    #[test]
    fn nothing_kept_is_no_output() {
        assert_eq!(Outputs::new(&step(1, 0, Wanted::Logits), 3, None).into_tensors(), []);
        let told = Outputs::new(&step(1, 0, Wanted::Logits), 3, Some(&[7])).into_tensors();
        assert_eq!((told.len(), told[0].0.as_str()), (1, "cached_tokens"));
        assert_eq!(told[0].1.to_i64("cached_tokens"), Ok(vec![7]));
    }
}
