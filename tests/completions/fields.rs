//! The fields of a request, each with the values that matter and what must come of them.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use spinfer_tests::client::join_choices;

use crate::{MODEL, SERVER, alone, error, greedy, with};

/// `Once upon a time` in the model's tokens.
const IDS: [u32; 4] = [6403, 1980, 253, 655];

fn choices(body: &Value) -> Vec<Value> {
    let answer = SERVER.complete(body);
    assert_eq!(answer.status, 200, "{body}: {}", answer.text);
    answer.json()["choices"].as_array().unwrap().clone()
}

fn text(body: &Value) -> String {
    choices(body)[0]["text"].as_str().unwrap().to_owned()
}

#[test]
fn a_prompt_has_four_forms() {
    let _alone = alone();
    let base = greedy("Once upon a time", 6);
    let expected = text(&base);
    for prompt in [json!(IDS), json!([IDS]), json!(["Once upon a time"])] {
        assert_eq!(text(&with(&base, json!({"prompt": prompt}))), expected, "{prompt}");
    }
    let two = choices(&with(&base, json!({"prompt": [IDS, [504, 3575, 282]]})));
    assert_eq!((two.len(), two[0]["text"].as_str().unwrap()), (2, expected.as_str()));
    assert_eq!(two[1]["text"], text(&greedy("The capital of", 6)));
}

#[test]
fn an_empty_prompt_starts_from_the_beginning() {
    let _alone = alone();
    let base = greedy("", 4);
    let expected = text(&base);
    // BOS, which this model doesn't want before other texts.
    for prompt in [json!(null), json!([""]), json!([1]), json!("<|im_start|>")] {
        assert_eq!(text(&with(&base, json!({"prompt": prompt}))), expected, "{prompt}");
    }
    for prompt in [json!([]), json!([[]]), json!([[1], []]), json!(["a", [1]])] {
        let (status, error) = error(&with(&base, json!({"prompt": prompt})));
        assert_eq!(status, 400, "{prompt}: {error}");
    }
}

#[test]
fn bad_ids_are_named_by_their_place() {
    for (prompt, param) in [
        (json!([1, -1]), "prompt[1]"),
        (json!([1, 49152]), "prompt[1]"),
        (json!([[1, 2], [3, 4, 49152]]), "prompt[1][2]"),
        (json!([[1, 2], [3, 1.5]]), "prompt[1][1]"),
        (json!([4294967296u64]), "prompt[0]"),
    ] {
        let (status, error) = error(&with(&greedy("", 1), json!({"prompt": prompt})));
        assert_eq!((status, error["param"].as_str()), (400, Some(param)), "{prompt}: {error}");
    }
}

/// Every number at its limits, one past each, and of a wrong type.
#[test]
fn numbers_have_limits() {
    let fields = [
        ("n", vec![json!(1), json!(128)], vec![json!(0), json!(129), json!("1"), json!(1.5)]),
        ("best_of", vec![json!(1), json!(20)], vec![json!(0), json!(21), json!(true)]),
        (
            "logprobs",
            vec![json!(0), json!(20), json!(true)],
            vec![json!(-1), json!(21), json!("1")],
        ),
        ("max_tokens", vec![json!(0), json!(1)], vec![json!(-1), json!(1e9), json!("1")]),
        ("temperature", vec![json!(0), json!(2)], vec![json!(-0.01), json!(2.01), json!("hot")]),
        ("top_p", vec![json!(0), json!(1)], vec![json!(-0.01), json!(1.01), json!([])]),
        (
            "frequency_penalty",
            vec![json!(-2), json!(2)],
            vec![json!(-2.01), json!(2.01), json!("x")],
        ),
        ("presence_penalty", vec![json!(-2), json!(2)], vec![json!(-2.01), json!(2.01), json!({})]),
        (
            "seed",
            vec![json!(i64::MIN), json!(i64::MAX)],
            vec![json!(9_223_372_036_854_775_808u64), json!(0.5), json!("1")],
        ),
        ("top_k", vec![json!(-1), json!(0), json!(1_000_000)], vec![json!(-2), json!(0.5)]),
        ("min_p", vec![json!(0), json!(1)], vec![json!(-0.01), json!(1.01), json!("x")]),
        ("repetition_penalty", vec![json!(0.01), json!(2)], vec![json!(0), json!(-1), json!("x")]),
        ("min_tokens", vec![json!(0), json!(1)], vec![json!(2), json!(-1), json!("1")]),
        (
            "logit_bias",
            vec![json!({}), json!({"0": -100, "49151": 100})],
            vec![json!({"a": 1}), json!({"49152": 1}), json!({"1": 100.1}), json!({"1": "x"})],
        ),
        (
            "stop_token_ids",
            vec![json!([]), json!([0, 49151])],
            vec![json!([49152]), json!([-1]), json!("x")],
        ),
    ];
    for (name, good, bad) in fields {
        for value in good {
            let answer = SERVER.complete(&with(&greedy("Once", 1), json!({name: value})));
            assert_eq!(answer.status, 200, "{name}: {value}: {}", answer.text);
        }
        for value in bad {
            let (status, error) = error(&with(&greedy("Once", 1), json!({name: value})));
            assert_eq!(status, 400, "{name}: {value}");
            let param = error["param"].as_str().unwrap();
            assert!(
                param == name
                    || param.starts_with(&format!("{name}."))
                    || param.starts_with(&format!("{name}[")),
                "{name}: {value}: {error}"
            );
        }
    }
}

#[test]
fn choices_differ_and_repeat() {
    let _alone = alone();
    let base = json!({"model": MODEL, "prompt": "Once", "n": 3, "seed": 1, "max_tokens": 8});
    let first = choices(&base);
    assert_eq!(first.len(), 3);
    let texts: BTreeSet<_> = first.iter().map(|choice| choice["text"].to_string()).collect();
    assert!(texts.len() > 1, "not all equal: {texts:?}");
    assert_eq!(choices(&base), first, "repeatable");
    let indices: Vec<_> = first.iter().map(|choice| choice["index"].as_u64().unwrap()).collect();
    assert_eq!(indices, [0, 1, 2]);
}

#[test]
fn best_of_finds_the_likeliest() {
    let _alone = alone();
    let base = json!({
        "model": MODEL, "prompt": "Once", "seed": 1, "max_tokens": 6, "temperature": 1.5,
        "logprobs": 0, "ignore_eos": true,
    });
    let mean = |choice: &Value| {
        let logprobs = choice["logprobs"]["token_logprobs"].as_array().unwrap();
        logprobs.iter().map(|logprob| logprob.as_f64().unwrap()).sum::<f64>()
            / logprobs.len() as f64
    };
    let mut all = choices(&with(&base, json!({"n": 6})));
    all.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
    let answer = SERVER.complete(&with(&base, json!({"n": 2, "best_of": 6}))).json();
    for (index, best) in answer["choices"].as_array().unwrap().iter().enumerate() {
        assert_eq!(best["text"], all[index]["text"]);
        assert_eq!(best["index"], index);
    }
    assert_eq!(answer["usage"]["completion_tokens"], 36);
    for (fields, param) in [
        (json!({"n": 3, "best_of": 2}), "best_of"),
        (json!({"n": 1, "best_of": 2, "stream": true}), "best_of"),
        (json!({"n": 21, "best_of": 20}), "best_of"),
    ] {
        let (status, error) = error(&with(&base, fields.clone()));
        assert_eq!((status, error["param"].as_str()), (400, Some(param)), "{fields}");
    }
    // As many as are kept can be streamed: nothing is to be ranked.
    let body = with(&base, json!({"n": 2, "best_of": 2}));
    assert_eq!(json!(join_choices(&SERVER.chunks(&body))), json!(choices(&body)));
}

#[test]
fn penalties_and_bias_change_what_comes() {
    let _alone = alone();
    let base = greedy("1 1 1 1 1 1 1 1", 12);
    let plain = text(&base);
    assert!(plain.starts_with(" 1 1 1"), "{plain:?}");
    for fields in [
        json!({"frequency_penalty": 2}),
        json!({"presence_penalty": 2}),
        json!({"repetition_penalty": 2}),
    ] {
        assert_ne!(text(&with(&base, fields.clone())), plain, "{fields}");
    }
    // The token " Paris" wins with a bias, and never comes with the opposite one.
    let paris = SERVER.post("/tokenize", "application/json", br#"{"prompt": " Paris"}"#).json();
    let paris = paris["tokens"][0].to_string();
    let capital = greedy("The capital of France is", 2);
    assert!(text(&capital).starts_with(" Paris"));
    let never = with(&capital, json!({"logit_bias": {&paris: -100}}));
    assert!(!text(&never).contains("Paris"));
    let always = with(&greedy("Two and two is", 3), json!({"logit_bias": {&paris: 100}}));
    assert_eq!(text(&always), " Paris Paris Paris");
}

#[test]
fn only_the_likeliest_are_sampled_where_asked_for() {
    let _alone = alone();
    let base = json!({"model": MODEL, "prompt": "Once", "max_tokens": 8, "temperature": 2});
    let expected = text(&greedy("Once", 8));
    for fields in [json!({"top_k": 1}), json!({"top_p": 0}), json!({"min_p": 1})] {
        assert_eq!(text(&with(&base, fields.clone())), expected, "{fields}");
    }
    // The same tokens, whether the host or the component finds the likeliest: a bias of 0 makes the
    // component read all logits.
    let few = with(&base, json!({"top_k": 40, "seed": 5, "n": 4}));
    let all = with(&few, json!({"logit_bias": {"0": 0}}));
    assert_eq!(choices(&few), choices(&all));
}

#[test]
fn stops_span_tokens_and_nothing_of_them_or_of_the_rest_is_lost() {
    let _alone = alone();
    let base = greedy("1, 2, 3, 4,", 24);
    let whole = text(&base);
    // Several tokens; the first token; never there; one whose beginning comes at the very end.
    let last = whole.chars().last().unwrap();
    for stop in [
        whole[3..8].to_owned(),
        whole[..1].to_owned(),
        "never in there".to_owned(),
        format!("{last}and more"),
    ] {
        let body = with(&base, json!({"stop": [stop]}));
        let expected = whole.split(&stop).next().unwrap();
        let choice = &choices(&body)[0];
        assert_eq!(choice["text"], expected, "{stop:?}");
        let stopped = expected.len() < whole.len();
        assert_eq!(choice["finish_reason"], if stopped { "stop" } else { "length" }, "{stop:?}");
        let mut streamed = String::new();
        for chunk in SERVER.chunks(&body) {
            streamed.push_str(chunk["choices"][0]["text"].as_str().unwrap());
            assert!(expected.starts_with(&streamed), "{streamed:?} of {expected:?}");
        }
        assert_eq!(streamed, expected);
    }
}

#[test]
fn emoji_cut_at_every_length_are_valid_text() {
    let _alone = alone();
    let prompt = "🙂🙃🙂🙃🙂🙃";
    for max_tokens in 0..9 {
        let body = greedy(prompt, max_tokens);
        // Chunks are parsed from JSON, which is UTF-8 or nothing.
        let chunks = SERVER.chunks(&body);
        assert_eq!(join_choices(&chunks), choices(&body), "{max_tokens}");
        let (_, before_the_last) = chunks.split_last().unwrap();
        for chunk in before_the_last {
            let text = chunk["choices"][0]["text"].as_str().unwrap();
            assert!(!text.contains('\u{fffd}'), "a part of a character: {text:?}");
        }
    }
}

#[test]
fn the_reason_for_the_end_is_told() {
    let _alone = alone();
    assert_eq!(choices(&greedy("Once", 1))[0]["finish_reason"], "length");
    let question = "<|im_start|>user\nSay hi.<|im_end|>\n<|im_start|>assistant\n";
    let ended = &choices(&greedy(question, 200))[0];
    assert_eq!(ended["finish_reason"], "stop");
    let usage =
        SERVER.complete(&greedy(question, 200)).json()["usage"]["completion_tokens"].clone();
    // One more than it wanted: the end itself is passed over, and adds no text.
    let tokens = usage.as_u64().unwrap() as usize;
    let ignored = &choices(&with(&greedy(question, tokens), json!({"ignore_eos": true})))[0];
    assert_eq!((&ignored["finish_reason"], &ignored["text"]), (&json!("length"), &ended["text"]));
    let longer =
        SERVER.complete(&with(&greedy(question, tokens + 5), json!({"min_tokens": tokens + 3})));
    assert!(longer.json()["usage"]["completion_tokens"].as_u64().unwrap() >= tokens as u64 + 3);
    let by_token = &choices(&with(&greedy("1, 2, 3,", 20), json!({"stop_token_ids": [28]})))[0];
    assert_eq!((&by_token["finish_reason"], &by_token["text"]), (&json!("stop"), &json!(" 4")));
}

#[test]
fn token_ids_are_returned_when_asked_for() {
    let _alone = alone();
    let body = with(&greedy("Once upon a time", 5), json!({"return_token_ids": true}));
    let choice = &choices(&body)[0];
    assert_eq!(choice["prompt_token_ids"], json!(IDS));
    let ids = choice["token_ids"].clone();
    assert_eq!(ids.as_array().unwrap().len(), 5);
    let back = SERVER.post(
        "/detokenize",
        "application/json",
        json!({"tokens": ids}).to_string().as_bytes(),
    );
    assert_eq!(back.json()["prompt"], choice["text"]);
    let chunks = SERVER.chunks(&body);
    assert_eq!(join_choices(&chunks), choices(&body));
    assert_eq!(chunks[0]["choices"][0]["prompt_token_ids"], json!(IDS));
    assert_eq!(chunks[1]["choices"][0]["prompt_token_ids"], Value::Null);
}

#[test]
fn obfuscation_pads_chunks_when_asked_for() {
    let body =
        |on: bool| with(&greedy("Once", 3), json!({"stream_options": {"include_obfuscation": on}}));
    assert!(SERVER.chunks(&body(true)).iter().all(|chunk| chunk["obfuscation"].is_string()));
    assert!(SERVER.chunks(&body(false)).iter().all(|chunk| chunk.get("obfuscation").is_none()));
    let base = greedy("Once", 1);
    assert_eq!(error(&with(&base, json!({"stream_options": {"include_usage": true}}))).0, 400);
    for options in [json!(null), json!({})] {
        assert_eq!(SERVER.complete(&with(&base, json!({"stream_options": options}))).status, 200);
    }
}
