use super::super::{Element, NnErrorCode};
use super::*;

const LIMITS: Limits = Limits { vocab_size: 100, context: 10, max_rows: 4, rewinds: true };

fn i64s(dimensions: &[u32], values: &[i64]) -> Tensor {
    Tensor::new(
        dimensions.to_vec(),
        Element::I64,
        values.iter().flat_map(|v| v.to_le_bytes()).collect(),
    )
}

fn i32s(values: &[i32]) -> Tensor {
    Tensor::new(
        vec![values.len() as u32],
        Element::I32,
        values.iter().flat_map(|v| v.to_le_bytes()).collect(),
    )
}

fn call(inputs: &[(&str, &Tensor)], lengths: &RowLengths) -> Result<Call, NnError> {
    let inputs: Vec<_> = inputs.iter().map(|(name, tensor)| (name.to_string(), *tensor)).collect();
    read(&inputs, lengths, &LIMITS)
}

fn lengths(rows: &[u32]) -> RowLengths {
    RowLengths { rows: rows.to_vec(), columns: 3, reserved: None }
}

fn row(parent: Option<usize>, start: u32, tokens: &[i32]) -> RowStep {
    RowStep { parent, start, tokens: tokens.to_vec() }
}

#[test]
fn ragged_prompts_are_padded_on_the_left() {
    let ids = i64s(&[2, 3], &[0, 0, 7, 1, 2, 3]);
    let mask = i64s(&[2, 3], &[0, 0, 1, 1, 1, 1]);
    let keep = i64s(&[1], &[1]);
    let inputs = [("input_ids", &ids), ("attention_mask", &mask), ("logits_to_keep", &keep)];
    let step = call(&inputs, &RowLengths::default()).unwrap().step.unwrap();
    assert_eq!(step.rows, [row(None, 0, &[7]), row(None, 0, &[1, 2, 3])]);
    assert_eq!((step.keep, step.wanted), (1, Wanted::Logits));
}

#[test]
fn reductions_come_instead_of_logits() {
    let ids = i64s(&[2, 2], &[0, 7, 1, 2]);
    let mask = i64s(&[2, 2], &[0, 1, 1, 1]);
    let top_k = i32s(&[3]);
    let gather = Tensor { dimensions: vec![2, 2], ..i32s(&[0, 99, 2, 0]) };
    let inputs = [
        ("input_ids", &ids),
        ("attention_mask", &mask),
        ("top_k", &top_k),
        ("gather_ids", &gather),
    ];
    let step = call(&inputs, &RowLengths::default()).unwrap().step.unwrap();
    assert_eq!(step.keep, 2);
    let gather = Some(vec![0, 99, 2, 0]);
    assert_eq!(
        step.wanted,
        Wanted::Reductions { top_k: Some(3), gather, log_sum_exp: true, scale: None }
    );
    let step = call(&inputs[..3], &RowLengths::default()).unwrap().step.unwrap();
    let reductions = |log_sum_exp, scale| Wanted::Reductions {
        top_k: Some(3),
        gather: None,
        log_sum_exp,
        scale,
    };
    let top = |log_sum_exp| reductions(log_sum_exp, None);
    assert_eq!(step.wanted, top(true));
    for (value, wanted) in [(0, Some(false)), (1, Some(true)), (2, None)] {
        let log_sum_exp = i32s(&[value]);
        let inputs = [inputs[0], inputs[1], inputs[2], ("logsumexp", &log_sum_exp)];
        let found = call(&inputs, &RowLengths::default()).map(|call| call.step.unwrap().wanted);
        assert_eq!(found.ok(), wanted.map(top));
    }
    for (value, is_right) in [(1.25, true), (0.0, false), (-1.0, false), (f32::NAN, false)] {
        let scale = Tensor::from_f32(vec![1], &[value]);
        let inputs = [inputs[0], inputs[1], inputs[2], ("scale", &scale)];
        let found = call(&inputs, &RowLengths::default()).map(|call| call.step.unwrap().wanted);
        let wanted = is_right.then(|| reductions(true, Some(Scale(value))));
        assert_eq!(found.ok(), wanted, "{value}");
        assert!(call(&[inputs[0], inputs[1], inputs[3]], &RowLengths::default()).is_err());
    }
}

#[test]
fn a_salt_says_with_whom_rows_are_shared() {
    let ids = i64s(&[1, 2], &[0, 7]);
    let salt = Tensor::new(vec![3], Element::U8, vec![1, 2, 3]);
    let salted = call(&[("input_ids", &ids), ("cache_salt", &salt)], &RowLengths::default());
    assert_eq!(salted.unwrap().cache_salt, Some(vec![1, 2, 3]));
    let plain = call(&[("input_ids", &ids)], &RowLengths::default());
    assert_eq!(plain.unwrap().cache_salt, None);
    let long = Tensor::new(vec![257], Element::U8, vec![0; 257]);
    let error = call(&[("input_ids", &ids), ("cache_salt", &long)], &RowLengths::default());
    assert_eq!(error.unwrap_err().code, NnErrorCode::InvalidArgument);
}

#[test]
fn every_row_can_begin_anew() {
    let ids = i64s(&[2, 1], &[5, 6]);
    let positions = i64s(&[2, 1], &[0, 0]);
    let beams = i32s(&[0, 0]);
    let inputs = [("input_ids", &ids), ("position_ids", &positions), ("beam_idx", &beams)];
    let inputs: Vec<_> = inputs.iter().map(|(n, t)| (n.to_string(), *t)).collect();
    let fixed = Limits { rewinds: false, ..LIMITS };
    let rows = read(&inputs, &lengths(&[3]), &fixed).unwrap().step.unwrap().rows;
    assert_eq!(rows, [row(Some(0), 0, &[5]), row(Some(0), 0, &[6])]);
}

#[test]
fn the_mask_may_span_past_and_new_columns() {
    let ids = i64s(&[2, 1], &[5, 6]);
    let mask = i64s(&[2, 4], &[0, 1, 1, 0, 1, 1, 1, 1]);
    let step = call(&[("input_ids", &ids), ("attention_mask", &mask)], &lengths(&[2, 3]));
    let rows = step.unwrap().step.unwrap().rows;
    assert_eq!(rows, [row(Some(0), 2, &[]), row(Some(1), 3, &[6])]);
}

#[test]
fn beam_idx_forks_reorders_and_drops() {
    let ids = i64s(&[3, 1], &[5, 6, 7]);
    let beams = i32s(&[1, 1, 0]);
    let step = call(&[("input_ids", &ids), ("beam_idx", &beams)], &lengths(&[2, 3]));
    let rows = step.unwrap().step.unwrap().rows;
    assert_eq!(rows, [row(Some(1), 3, &[5]), row(Some(1), 3, &[6]), row(Some(0), 2, &[7])]);
}

#[test]
fn positions_below_the_length_rewind() {
    let ids = i64s(&[1, 2], &[5, 6]);
    let positions = i64s(&[1, 2], &[1, 2]);
    let inputs = [("input_ids", &ids), ("position_ids", &positions)];
    let rows = call(&inputs, &lengths(&[3])).unwrap().step.unwrap().rows;
    assert_eq!(rows, [row(Some(0), 1, &[5, 6])]);
    let fixed = Limits { rewinds: false, ..LIMITS };
    let inputs: Vec<_> = inputs.iter().map(|(n, t)| (n.to_string(), *t)).collect();
    let error = read(&inputs, &lengths(&[3]), &fixed).unwrap_err();
    assert_eq!(error.code, NnErrorCode::UnsupportedOperation);
}

#[test]
fn a_reservation_may_come_alone_or_with_tokens() {
    let reserve = i64s(&[2], &[10, 4]);
    let alone = call(&[("reserve", &reserve)], &RowLengths::default()).unwrap();
    assert_eq!(alone, Call { reserve: Some(vec![10, 4]), step: None, cache_salt: None });
    let ids = i64s(&[1, 1], &[5]);
    let both = call(&[("reserve", &reserve), ("input_ids", &ids)], &RowLengths::default());
    assert!(both.unwrap().step.is_some());
    let late = call(&[("reserve", &reserve)], &lengths(&[1])).unwrap_err();
    assert_eq!(late.code, NnErrorCode::InvalidArgument);
}

/// Inputs, the rows before them, and what the error must be and say.
type Wrong = (Vec<(&'static str, Tensor)>, RowLengths, NnErrorCode, &'static str);

#[test]
fn what_is_wrong_is_named() {
    let ids = i64s(&[1, 2], &[5, 6]);
    let none = RowLengths::default();
    let cases: Vec<Wrong> = vec![
        (vec![], none.clone(), NnErrorCode::InvalidArgument, "input_ids"),
        (vec![("inputs", ids.clone())], none.clone(), NnErrorCode::InvalidArgument, "inputs"),
        (
            vec![("input_ids", ids.clone()), ("input_ids", ids.clone())],
            none.clone(),
            NnErrorCode::InvalidArgument,
            "input_ids is given twice",
        ),
        (
            vec![("input_ids", i64s(&[2], &[1, 2]))],
            none.clone(),
            NnErrorCode::InvalidArgument,
            "[B, S]",
        ),
        (
            vec![("input_ids", i64s(&[1, 0], &[]))],
            none.clone(),
            NnErrorCode::InvalidArgument,
            "[B, S]",
        ),
        (
            vec![("input_ids", i64s(&[1, 3], &[1, 2]))],
            none.clone(),
            NnErrorCode::InvalidArgument,
            "16 bytes",
        ),
        (
            vec![("input_ids", i64s(&[u32::MAX, u32::MAX], &[]))],
            none.clone(),
            NnErrorCode::TooLarge,
            "rows",
        ),
        (vec![("input_ids", i32s(&[1]))], none.clone(), NnErrorCode::InvalidArgument, "input_ids"),
        (
            vec![("input_ids", i64s(&[1, 1], &[100]))],
            none.clone(),
            NnErrorCode::InvalidArgument,
            "100",
        ),
        (
            vec![("input_ids", i64s(&[1, 1], &[-1]))],
            none.clone(),
            NnErrorCode::InvalidArgument,
            "-1",
        ),
        (vec![("input_ids", i64s(&[1, 11], &[1; 11]))], none.clone(), NnErrorCode::TooLarge, "11"),
        (
            vec![("input_ids", ids.clone())],
            lengths(&[1, 1]),
            NnErrorCode::InvalidArgument,
            "beam_idx",
        ),
        (
            vec![("input_ids", ids.clone()), ("beam_idx", i32s(&[2]))],
            lengths(&[1, 1]),
            NnErrorCode::InvalidArgument,
            "beam_idx",
        ),
        (
            vec![("input_ids", ids.clone()), ("attention_mask", i64s(&[1, 2], &[1, 0]))],
            none.clone(),
            NnErrorCode::InvalidArgument,
            "attention_mask",
        ),
        (
            vec![("input_ids", ids.clone()), ("position_ids", i64s(&[1, 2], &[0, 2]))],
            none.clone(),
            NnErrorCode::InvalidArgument,
            "position_ids",
        ),
        (
            vec![("input_ids", ids.clone()), ("position_ids", i64s(&[1, 2], &[4, 5]))],
            lengths(&[3]),
            NnErrorCode::InvalidArgument,
            "position_ids",
        ),
        (
            vec![("input_ids", ids.clone()), ("logits_to_keep", i64s(&[1], &[-1]))],
            none.clone(),
            NnErrorCode::InvalidArgument,
            "logits_to_keep",
        ),
        (
            vec![("input_ids", ids.clone()), ("top_k", i32s(&[101]))],
            none.clone(),
            NnErrorCode::InvalidArgument,
            "top_k: 101 is not in 0 to 100",
        ),
        (
            vec![("input_ids", ids.clone()), ("top_k", i32s(&[-1]))],
            none.clone(),
            NnErrorCode::InvalidArgument,
            "top_k",
        ),
        (
            vec![("input_ids", ids.clone()), ("gather_ids", i32s(&[1, 2]))],
            none.clone(),
            NnErrorCode::InvalidArgument,
            "gather_ids: the shape must be [1, 2]",
        ),
        (
            vec![
                ("input_ids", ids.clone()),
                ("gather_ids", Tensor { dimensions: vec![1, 2], ..i32s(&[1, 100]) }),
            ],
            none.clone(),
            NnErrorCode::InvalidArgument,
            "gather_ids: 100 in row 0",
        ),
        (vec![("reserve", i64s(&[1], &[11]))], none.clone(), NnErrorCode::TooLarge, "11"),
        (vec![("reserve", i64s(&[5], &[1; 5]))], none.clone(), NnErrorCode::TooLarge, "5 rows"),
        (
            vec![("input_ids", ids.clone())],
            RowLengths { reserved: Some((1, 1)), ..none.clone() },
            NnErrorCode::InvalidArgument,
            "reserved",
        ),
    ];
    for (inputs, lengths, code, words) in &cases {
        let inputs: Vec<_> = inputs.iter().map(|(name, tensor)| (*name, tensor)).collect();
        let error = call(&inputs, lengths).unwrap_err();
        assert_eq!(error.code, *code, "{}", error.message);
        assert!(error.message.contains(words), "{:?} should say {words:?}", error.message);
    }
}
