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

fn prompts(value: Value) -> Prompts {
    with("prompt", value).unwrap().prompts
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
            prompts: prompts(json!("p")),
            suffix: None,
            max_tokens: None,
            max_tokens_field: "max_tokens",
            choices: Choices { n: 1, candidates: 1 },
            sampling: SamplingParams::default(),
            seed: None,
            stopping: Stopping::default(),
            echo: false,
            logprobs: None,
            return_token_ids: false,
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
    assert_eq!(parse(&body).unwrap(), parse(&json!({"model": "m", "prompt": "p"})).unwrap());
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
    assert_eq!(empty.prompts.list, [Prompt::Text(String::new())]);
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
            vec![json!(1), json!(128)],
            vec![json!(0), json!(129), json!(1.5), json!("1"), json!(true)],
        ),
        ("best_of", vec![json!(1), json!(20)], vec![json!(0), json!(21), json!("1")]),
        (
            "logprobs",
            vec![json!(0), json!(20), json!(true), json!(false)],
            vec![json!(-1), json!(21), json!("1"), json!(1.5)],
        ),
        ("frequency_penalty", vec![json!(-2), json!(2)], vec![json!(-2.1), json!(2.1), json!("x")]),
        ("presence_penalty", vec![json!(-2), json!(2)], vec![json!(-2.1), json!(2.1), json!([])]),
        (
            "repetition_penalty",
            vec![json!(1), json!(0.1), json!(9)],
            vec![json!(0), json!(-1), json!(1e300), json!("x")],
        ),
        ("top_k", vec![json!(0), json!(-1), json!(i64::MAX)], vec![json!(-2), json!(0.5)]),
        ("min_p", vec![json!(0), json!(1)], vec![json!(-0.1), json!(1.1), json!("x")]),
        ("min_tokens", vec![json!(0), json!(16)], vec![json!(17), json!(-1), json!(u64::MAX)]),
        (
            "stop_token_ids",
            vec![json!([]), json!([0, 4_294_967_295_u32])],
            vec![json!(["a"]), json!(1), json!([-1]), json!([4_294_967_296_u64]), json!([1.5])],
        ),
        (
            "logit_bias",
            vec![json!({}), json!({"0": -100, "17": 100, "18": 0.5})],
            vec![
                json!({"a": 1}),
                json!({"-1": 1}),
                json!({"+1": 1}),
                json!({"1.5": 1}),
                json!({"1": 100.5}),
                json!({"1": "x"}),
                json!({"1": null}),
                json!({"1": 1, "01": 2}),
                json!([]),
            ],
        ),
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
    let error = refused("logit_bias", json!({"abc": 1}));
    assert_eq!(error.param.as_deref(), Some("logit_bias.abc"));
    assert_eq!(error.message, "The keys of `logit_bias` must be token ids, not \"abc\".");
    let error = refused("stop_token_ids", json!([1, -5]));
    assert_eq!(error.param.as_deref(), Some("stop_token_ids[1]"));
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
fn n_and_best_of_go_together() {
    let choices = |fields: Value| {
        let mut body = json!({"model": "m", "prompt": "p"});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        parse(&body).map(|request| (request.choices.n, request.choices.candidates))
    };
    assert_eq!(choices(json!({})), Ok((1, 1)));
    assert_eq!(choices(json!({"n": 3})), Ok((3, 3)));
    assert_eq!(choices(json!({"n": 3, "best_of": 3, "stream": true})), Ok((3, 3)));
    assert_eq!(choices(json!({"n": 2, "best_of": 20})), Ok((2, 20)));
    for fields in [
        json!({"n": 3, "best_of": 2}),
        json!({"n": 128, "best_of": 20}),
        json!({"n": 1, "best_of": 2, "stream": true}),
    ] {
        let error = choices(fields.clone()).unwrap_err();
        assert_eq!((error.status, error.param.as_deref()), (400, Some("best_of")), "{fields}");
    }
}

#[test]
fn true_is_one_alternative_and_0_is_none_beside_the_token() {
    for (value, expected) in [
        (json!(true), Some(1)),
        (json!(false), None),
        (json!(null), None),
        (json!(0), Some(0)),
        (json!(20), Some(20)),
    ] {
        assert_eq!(with("logprobs", value).unwrap().logprobs, expected);
    }
}

#[test]
fn a_suffix_goes_with_echo_or_logprobs_but_not_both() {
    assert_eq!(with("suffix", json!("")).unwrap().suffix, None);
    let with_suffix = |echo: bool, logprobs: Value| {
        let body =
            json!({"model": "m", "prompt": "p", "suffix": "s", "echo": echo, "logprobs": logprobs});
        parse(&body)
    };
    assert_eq!(with_suffix(true, json!(null)).unwrap().suffix.as_deref(), Some("s"));
    assert!(with_suffix(false, json!(1)).is_ok());
    assert_eq!(with_suffix(true, json!(0)).unwrap_err().param.as_deref(), Some("suffix"));
}

#[test]
fn min_tokens_is_at_most_max_tokens() {
    let body = json!({"model": "m", "prompt": "p", "max_tokens": 3, "min_tokens": 4});
    assert_eq!(parse(&body).unwrap_err().param.as_deref(), Some("min_tokens"));
    let body = json!({"model": "m", "prompt": "p", "max_tokens": 4, "min_tokens": 4});
    assert_eq!(parse(&body).unwrap().stopping.min_tokens, 4);
}

#[test]
fn top_k_of_0_and_below_is_off() {
    assert_eq!(with("top_k", json!(5)).unwrap().sampling.top_k, Some(5));
    assert_eq!(with("top_k", json!(0)).unwrap().sampling.top_k, None);
    assert_eq!(with("top_k", json!(-1)).unwrap().sampling.top_k, None);
}

#[test]
fn tokenize_and_detokenize_have_bodies_of_their_own() {
    let tokenize = |body: Value| TokenizeRequest::parse(body.to_string().as_bytes());
    let request = tokenize(json!({"prompt": "a", "model": null})).unwrap();
    assert_eq!(
        request,
        TokenizeRequest { model: None, text: "a".into(), add_special_tokens: true }
    );
    assert!(
        !tokenize(json!({"prompt": "", "add_special_tokens": false})).unwrap().add_special_tokens
    );
    for body in [json!({}), json!({"prompt": null}), json!({"prompt": ["a"]}), json!({"prompt": 1})]
    {
        assert_eq!(tokenize(body).unwrap_err().param.as_deref(), Some("prompt"));
    }
    let detokenize = |body: Value| DetokenizeRequest::parse(body.to_string().as_bytes());
    assert_eq!(detokenize(json!({"tokens": [1, 2], "model": "m"})).unwrap().tokens, [1, 2]);
    assert!(detokenize(json!({"tokens": []})).unwrap().tokens.is_empty());
    for (body, param) in [
        (json!({}), "tokens"),
        (json!({"tokens": 1}), "tokens"),
        (json!({"tokens": [1, "a"]}), "tokens[1]"),
        (json!({"tokens": [-1]}), "tokens[0]"),
    ] {
        assert_eq!(detokenize(body).unwrap_err().param.as_deref(), Some(param));
    }
}

#[test]
fn stop_takes_one_string_or_up_to_64() {
    assert_eq!(with("stop", json!("a")).unwrap().stopping.texts, ["a"]);
    assert_eq!(with("stop", json!(["a", "b"])).unwrap().stopping.texts, ["a", "b"]);
    assert_eq!(with("stop", json!(vec!["a"; 64])).unwrap().stopping.texts.len(), 64);
    for value in
        [json!(vec!["a"; 65]), json!(""), json!(["a", ""]), json!(["a", 1]), json!(1), json!({})]
    {
        refused("stop", value);
    }
}

#[test]
fn stream_options_need_a_stream() {
    assert_eq!(with("stream", json!(true)).unwrap().stream, Some(StreamOptions::default()));
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
    let noisy = streamed(json!({"include_obfuscation": true})).unwrap().stream.unwrap();
    assert!(noisy.include_obfuscation && !noisy.include_usage);
    for (options, param) in [
        (json!({"include_usage": 1}), "stream_options.include_usage"),
        (json!({"include_obfuscation": "x"}), "stream_options.include_obfuscation"),
        (json!([]), "stream_options"),
    ] {
        assert_eq!(streamed(options).unwrap_err().param.as_deref(), Some(param));
    }
}
