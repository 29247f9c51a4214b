use serde_json::{Value, json};

use super::*;

fn parse(body: &Value) -> Result<CompletionRequest, ApiError> {
    CompletionRequest::parse(body.to_string().as_bytes())
}

/// A request with one more field.
fn with(name: &str, value: Value) -> Result<CompletionRequest, ApiError> {
    let mut body = json!({"model": "m", "prompt": "p"});
    body[name] = value;
    parse(&body)
}

#[track_caller]
fn refused(name: &str, value: Value) -> ApiError {
    let error = with(name, value.clone()).expect_err(&format!("{name}: {value}"));
    assert_eq!(error.status, 400, "{name}: {value}");
    let param = error.param.clone().expect("a field");
    assert!(param.starts_with(name), "{name}: {value}: {param}");
    error
}

#[test]
fn the_shortest_request_gets_the_defaults() {
    let request = parse(&json!({"model": "m", "prompt": "p"})).unwrap();
    assert_eq!(
        request,
        CompletionRequest {
            model: "m".into(),
            prompts: vec![Prompt::Text("p".into())],
            max_tokens: None,
            sampling: SamplingParams::default(),
            seed: None,
            stop: vec![],
            stream: None,
            user: None,
        }
    );
    assert_eq!(request.sampling.temperature.get(), 1.0);
    assert_eq!(request.sampling.top_p.get(), 1.0);
}

#[test]
fn every_optional_field_may_be_null_and_unknown_ones_are_ignored() {
    let plain = parse(&json!({"model": "m", "prompt": "p"})).unwrap();
    let mut body = json!({"model": "m", "prompt": "p", "guided_json": {"a": 1}});
    for name in KNOWN.iter().filter(|name| **name != "model") {
        body[*name] = Value::Null;
    }
    assert_eq!(parse(&body).unwrap(), plain);
}

#[test]
fn what_clients_send_without_meaning_it_is_fine() {
    let body = json!({
        "model": "m", "prompt": "p", "logit_bias": {}, "seed": null, "logprobs": null, "n": 1, "best_of": 1,
        "echo": false, "frequency_penalty": 0, "presence_penalty": 0.0, "suffix": "", "repetition_penalty": 1.0,
        "top_k": -1, "min_p": 0.0, "stop_token_ids": [], "ignore_eos": false, "min_tokens": 0, "stop": [],
        "return_token_ids": false, "stream_options": {},
    });
    assert!(parse(&body).is_ok());
}

#[test]
fn model_and_prompt_are_required() {
    assert_eq!(parse(&json!({"prompt": "p"})).unwrap_err().param.as_deref(), Some("model"));
    assert_eq!(
        parse(&json!({"model": null, "prompt": "p"})).unwrap_err().param.as_deref(),
        Some("model")
    );
    assert_eq!(
        parse(&json!({"model": 1, "prompt": "p"})).unwrap_err().param.as_deref(),
        Some("model")
    );
    assert_eq!(parse(&json!({"model": "m"})).unwrap_err().param.as_deref(), Some("prompt"));
    let empty = parse(&json!({"model": "m", "prompt": null})).unwrap();
    assert_eq!(empty.prompts, [Prompt::Text(String::new())]);
}

#[test]
fn numbers_at_and_past_their_limits() {
    for (name, good, bad) in [
        (
            "temperature",
            vec![json!(0), json!(2), json!(0.7)],
            vec![json!(-0.1), json!(2.1), json!("hot"), json!(true)],
        ),
        (
            "top_p",
            vec![json!(0), json!(1), json!(0.5)],
            vec![json!(-0.1), json!(1.1), json!([]), json!("x")],
        ),
        (
            "max_tokens",
            vec![json!(0), json!(1_000_000)],
            vec![json!(-1), json!(1.5), json!("4"), json!(u64::MAX)],
        ),
        ("max_completion_tokens", vec![json!(0)], vec![json!(-1), json!({})]),
        (
            "seed",
            vec![json!(i64::MIN), json!(i64::MAX)],
            vec![json!(1.5), json!("1"), json!(u64::MAX)],
        ),
        (
            "n",
            vec![json!(1)],
            vec![json!(0), json!(129), json!(1.5), json!("1"), json!(true), json!(2)],
        ),
        ("best_of", vec![json!(1)], vec![json!(0), json!(21), json!("1"), json!(2)]),
        (
            "logprobs",
            vec![json!(false)],
            vec![json!(-1), json!(21), json!("1"), json!(0), json!(true)],
        ),
        ("frequency_penalty", vec![json!(0)], vec![json!(-2.1), json!(2.1), json!("x"), json!(2)]),
        ("presence_penalty", vec![json!(0)], vec![json!(-2.1), json!(2.1), json!("x"), json!(-2)]),
        ("repetition_penalty", vec![json!(1)], vec![json!(0), json!(1.1), json!("x")]),
        ("top_k", vec![json!(0), json!(-1)], vec![json!(-2), json!(5), json!(0.5)]),
        ("min_p", vec![json!(0)], vec![json!(-0.1), json!(0.1), json!(1.1)]),
        ("min_tokens", vec![json!(0)], vec![json!(1), json!(-1)]),
        ("stop_token_ids", vec![json!([])], vec![json!([1]), json!(["a"]), json!(1), json!([-1])]),
    ] {
        for value in good {
            assert!(with(name, value.clone()).is_ok(), "{name}: {value}");
        }
        for value in bad {
            refused(name, value);
        }
    }
}

#[test]
fn refusals_name_the_limit_and_the_value() {
    assert_eq!(
        refused("temperature", json!(2.5)).message,
        "`temperature` must be a number from 0 to 2, not 2.5."
    );
    assert_eq!(
        refused("temperature", json!("hot")).message,
        "`temperature` must be a number from 0 to 2, not \"hot\"."
    );
    assert_eq!(
        refused("max_tokens", json!(-1)).message,
        "`max_tokens` must be an integer of at least 0, not -1."
    );
    assert_eq!(refused("n", json!(2)).message, "`n` is not supported yet.");
    assert_eq!(refused("n", json!(129)).message, "`n` must be an integer from 1 to 128, not 129.");
}

#[test]
fn max_completion_tokens_counts_only_without_max_tokens() {
    let both = json!({"model": "m", "prompt": "p", "max_tokens": 3, "max_completion_tokens": 5});
    assert_eq!(parse(&both).unwrap().max_tokens, Some(3));
    let null = json!({"model": "m", "prompt": "p", "max_tokens": null, "max_completion_tokens": 5});
    assert_eq!(parse(&null).unwrap().max_tokens, Some(5));
}

#[test]
fn booleans_and_strings_are_strict() {
    for name in ["stream", "echo", "ignore_eos", "return_token_ids"] {
        for value in [json!(0), json!("true"), json!([])] {
            refused(name, value);
        }
    }
    for name in ["user", "suffix"] {
        refused(name, json!(1));
    }
    assert_eq!(with("user", json!("someone")).unwrap().user.as_deref(), Some("someone"));
}

#[test]
fn what_is_not_carried_out_yet_is_refused() {
    for (name, value) in [
        ("echo", json!(true)),
        ("suffix", json!("x")),
        ("logit_bias", json!({"1": 1})),
        ("ignore_eos", json!(true)),
        ("return_token_ids", json!(true)),
        ("prompt", json!(["a", "b"])),
        ("prompt", json!([1, 2])),
    ] {
        assert!(refused(name, value).message.ends_with("not supported yet."));
    }
    assert!(with("prompt", json!(["a"])).is_ok());
}

#[test]
fn stop_takes_one_string_or_up_to_64() {
    assert_eq!(with("stop", json!("a")).unwrap().stop, ["a"]);
    assert_eq!(with("stop", json!(["a", "b"])).unwrap().stop, ["a", "b"]);
    assert_eq!(with("stop", json!(vec!["a"; 64])).unwrap().stop.len(), 64);
    for value in
        [json!(vec!["a"; 65]), json!(""), json!(["a", ""]), json!(["a", 1]), json!(1), json!({})]
    {
        refused("stop", value);
    }
}

#[test]
fn stream_options_need_a_stream() {
    assert_eq!(
        with("stream", json!(true)).unwrap().stream,
        Some(StreamOptions { include_usage: false })
    );
    assert_eq!(with("stream", json!(false)).unwrap().stream, None);
    refused("stream_options", json!({"include_usage": true}));
    let streamed = |options: Value| {
        parse(&json!({"model": "m", "prompt": "p", "stream": true, "stream_options": options}))
    };
    assert!(streamed(json!({"include_usage": true})).unwrap().stream.unwrap().include_usage);
    assert!(
        !streamed(json!({"include_usage": null, "other": 1}))
            .unwrap()
            .stream
            .unwrap()
            .include_usage
    );
    for (options, param) in [
        (json!({"include_usage": 1}), "stream_options.include_usage"),
        (json!({"include_obfuscation": true}), "stream_options.include_obfuscation"),
        (json!([]), "stream_options"),
    ] {
        assert_eq!(streamed(options).unwrap_err().param.as_deref(), Some(param));
    }
}
