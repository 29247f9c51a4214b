use std::cell::RefCell;

use serde_json::{Value, json};

use super::*;
use crate::generation::BackendErrorKind;
use crate::testing::{FakeBody, FakePlatform, block_on, byte, certain, letters};
use crate::tokenizer::TokenId;

/// Continues every prompt with `Hi 🦀!` and the end of the sequence; prompts end with `>`.
fn crab(tokens: &[TokenId]) -> Vec<f32> {
    let start = tokens.iter().rposition(|token| *token == byte(b'>')).expect("a prompt's end") + 1;
    let text = "Hi 🦀!".as_bytes();
    certain(text.get(tokens.len() - start).map_or(2, |next| byte(*next)))
}

fn post(
    platform: &FakePlatform,
    fields: &Value,
) -> Result<Reply<<FakePlatform as Platform>::Context>, ApiError> {
    let mut body = json!({"model": "m", "prompt": "say>", "temperature": 0, "max_tokens": 20});
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    block_on(respond(Endpoint::Completions, body.to_string().as_bytes(), platform))
}

fn whole(platform: &FakePlatform, fields: &Value) -> Value {
    match post(platform, fields).unwrap() {
        Reply::Json(body) => serde_json::from_str(&body).unwrap(),
        Reply::Stream(_) => panic!("no stream was asked for"),
    }
}

/// The events of a stream, and how it ended for the log.
fn events(
    platform: &FakePlatform,
    fields: &Value,
    leaves_after: Option<usize>,
) -> (Vec<String>, Result<(), ApiError>) {
    let mut fields = fields.clone();
    fields["stream"] = true.into();
    let Reply::Stream(stream) = post(platform, &fields).unwrap() else {
        panic!("a stream was asked for")
    };
    let written = RefCell::new(Vec::new());
    let ended = block_on(stream.write(FakeBody { written: Some(&written), leaves_after }));
    let events = written
        .into_inner()
        .into_iter()
        .map(|event| event.strip_prefix("data: ").unwrap().strip_suffix("\n\n").unwrap().to_owned())
        .collect();
    (events, ended)
}

fn chunks(platform: &FakePlatform, fields: &Value) -> Vec<Value> {
    let (mut events, ended) = events(platform, fields, None);
    ended.unwrap();
    assert_eq!(events.pop().unwrap(), "[DONE]");
    events.iter().map(|event| serde_json::from_str(event).unwrap()).collect()
}

#[test]
fn a_whole_answer_has_everything() {
    let answer = whole(&FakePlatform::new(crab), &json!({}));
    let id = answer["id"].as_str().unwrap();
    assert!(id.starts_with("cmpl-") && id.len() == 5 + 32, "{id}");
    assert_eq!(answer["object"], "text_completion");
    assert_eq!(answer["created"], 1_800_000_000);
    assert_eq!(answer["model"], "m");
    assert!(answer["system_fingerprint"].is_string());
    assert_eq!(
        answer["choices"],
        json!([{"index": 0, "text": "Hi 🦀!", "logprobs": null, "finish_reason": "stop"}])
    );
    assert_eq!(
        answer["usage"],
        json!({"prompt_tokens": 4, "completion_tokens": 9, "total_tokens": 13})
    );
}

#[test]
fn ids_and_unseeded_answers_differ() {
    let platform = FakePlatform::new(letters);
    let fields = json!({"temperature": 1});
    let (first, second) = (whole(&platform, &fields), whole(&platform, &fields));
    assert_ne!(first["id"], second["id"]);
    assert_ne!(first["choices"], second["choices"]);
    let fields = json!({"temperature": 1, "seed": -5});
    assert_eq!(whole(&platform, &fields)["choices"], whole(&platform, &fields)["choices"]);
}

#[test]
fn the_limit_cuts_at_every_length() {
    let platform = FakePlatform::new(crab);
    for (max_tokens, text) in [
        (0, ""),
        (1, "H"),
        (3, "Hi "),
        (4, "Hi \u{fffd}"),
        (6, "Hi \u{fffd}"),
        (7, "Hi 🦀"),
        (8, "Hi 🦀!"),
    ] {
        let answer = whole(&platform, &json!({"max_tokens": max_tokens}));
        assert_eq!(answer["choices"][0]["text"], text, "{max_tokens}");
        assert_eq!(answer["choices"][0]["finish_reason"], "length", "{max_tokens}");
        assert_eq!(answer["usage"]["completion_tokens"], max_tokens);
    }
    assert_eq!(whole(&platform, &json!({"max_tokens": 9}))["choices"][0]["finish_reason"], "stop");
}

#[test]
fn stop_strings_cut_the_text() {
    let platform = FakePlatform::new(crab);
    for (stop, text, tokens) in [
        (json!("i 🦀"), "H", 7),
        (json!("H"), "", 1),
        (json!(["nothing", "!"]), "Hi 🦀", 8),
        (json!("!!"), "Hi 🦀!", 9),
        (json!(["🦀!", "i"]), "H", 2),
    ] {
        let answer = whole(&platform, &json!({"stop": stop}));
        assert_eq!(answer["choices"][0]["text"], text, "{stop}");
        assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{stop}");
        assert_eq!(answer["usage"]["completion_tokens"], tokens, "{stop}");
    }
    let limited = whole(&platform, &json!({"stop": "!?", "max_tokens": 8}));
    assert_eq!(limited["choices"][0]["text"], "Hi 🦀!");
    assert_eq!(limited["choices"][0]["finish_reason"], "length");
}

#[test]
fn a_stream_is_the_answer_in_chunks() {
    let platform = FakePlatform::new(crab);
    let chunks = chunks(&platform, &json!({}));
    let texts = chunks
        .iter()
        .map(|chunk| chunk["choices"][0]["text"].as_str().unwrap())
        .collect::<Vec<_>>();
    assert_eq!(texts, ["H", "i", " ", "🦀", "!", ""]);
    for chunk in &chunks {
        assert_eq!(chunk["id"], chunks[0]["id"]);
        assert_eq!(chunk["object"], "text_completion");
        assert_eq!(chunk["model"], "m");
        assert_eq!(chunk["choices"].as_array().unwrap().len(), 1);
        assert!(chunk["choices"][0]["logprobs"].is_null());
        assert!(chunk.get("usage").is_none());
    }
    let reasons =
        chunks.iter().map(|chunk| chunk["choices"][0]["finish_reason"].clone()).collect::<Vec<_>>();
    assert_eq!(reasons[..5], vec![Value::Null; 5]);
    assert_eq!(reasons[5], "stop");
}

#[test]
fn the_joined_stream_equals_the_whole_answer() {
    for rule in [crab as crate::testing::Rule, letters] {
        let platform = FakePlatform::new(rule);
        for fields in [
            json!({"max_tokens": 5}),
            json!({"temperature": 1, "seed": 3}),
            json!({"temperature": 2, "seed": 4, "top_p": 0.5, "stop": ["a", "bc", "Hi 🦀!!"]}),
            json!({"stop": "🦀", "max_tokens": 5}),
            json!({"max_tokens": 0}),
        ] {
            let whole = whole(&platform, &fields);
            let chunks = chunks(&platform, &fields);
            let joined = chunks
                .iter()
                .map(|chunk| chunk["choices"][0]["text"].as_str().unwrap())
                .collect::<String>();
            assert_eq!(joined, whole["choices"][0]["text"].as_str().unwrap(), "{fields}");
            let last = &chunks.last().unwrap()["choices"][0]["finish_reason"];
            assert_eq!(*last, whole["choices"][0]["finish_reason"], "{fields}");
        }
    }
}

#[test]
fn usage_comes_in_a_last_chunk_when_asked_for() {
    let platform = FakePlatform::new(crab);
    let mut chunks = chunks(&platform, &json!({"stream_options": {"include_usage": true}}));
    let last = chunks.pop().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(
        last["usage"],
        json!({"prompt_tokens": 4, "completion_tokens": 9, "total_tokens": 13})
    );
    assert!(chunks.iter().all(|chunk| chunk.get("usage") == Some(&Value::Null)));
}

#[test]
fn a_failure_in_mid_stream_is_the_last_event() {
    let platform = FakePlatform::new(crab);
    platform.fails_after.set(Some(2));
    let (events, ended) = events(&platform, &json!({}), None);
    assert_eq!(events.len(), 3);
    let error: Value = serde_json::from_str(&events[2]).unwrap();
    assert_eq!(error["error"]["type"], "server_error");
    assert!(error["error"]["message"].as_str().unwrap().contains("out of order"));
    assert_eq!(ended.unwrap_err().status, 500);
    assert_eq!(post(&platform, &json!({})).unwrap_err().status, 500);
}

#[test]
fn a_reader_who_leaves_ends_the_work() {
    let platform = FakePlatform::new(crab);
    // One step more would fail: none is computed after the write that nobody took.
    platform.fails_after.set(Some(3));
    let (events, ended) = events(&platform, &json!({}), Some(2));
    assert_eq!((events.len(), ended), (2, Ok(())));
}

#[test]
fn refusals_of_the_backend_have_their_status() {
    let platform = FakePlatform::new(crab);
    for (kind, status, code) in [
        (BackendErrorKind::Busy, 429, Some("rate_limit_exceeded")),
        (BackendErrorKind::TooLarge, 400, Some("context_length_exceeded")),
        (BackendErrorKind::NoModel, 404, Some("model_not_found")),
        (BackendErrorKind::Failed, 500, None),
    ] {
        for stream in [false, true] {
            platform.open_error.replace(Some(BackendError { kind, message: "so".into() }));
            let error = post(&platform, &json!({"stream": stream})).unwrap_err();
            assert_eq!((error.status, error.code), (status, code));
        }
    }
}

#[test]
fn nan_is_an_error_of_the_server() {
    let platform = FakePlatform::new(|_| vec![f32::NAN; 300]);
    let error = post(&platform, &json!({})).unwrap_err();
    assert_eq!(error.status, 500);
    assert!(error.message.contains("the model produced NaN"), "{}", error.message);
    let short = FakePlatform::new(|_| vec![0.0; 3]);
    assert_eq!(post(&short, &json!({})).unwrap_err().status, 500);
}

#[test]
fn unknown_models_are_404() {
    let error = post(&FakePlatform::new(crab), &json!({"model": "../m"})).unwrap_err();
    assert_eq!(
        (error.status, error.code, error.param.as_deref()),
        (404, Some("model_not_found"), Some("model"))
    );
}

#[test]
fn the_other_style_of_vocabulary_keeps_leading_spaces() {
    let platform = FakePlatform::new(|tokens| {
        let hello = 3 + 256 + 9;
        certain(if tokens.len() == 1 { hello } else { 2 })
    });
    let answer = whole(&platform, &json!({"model": "fallback", "prompt": ">"}));
    assert_eq!(answer["choices"][0]["text"], " hello");
}

#[test]
fn the_other_endpoints() {
    let platform = FakePlatform::new(crab);
    let get = |endpoint| match block_on(respond(endpoint, b"", &platform)) {
        Ok(Reply::Json(body)) => serde_json::from_str::<Value>(&body).unwrap(),
        other => panic!("{other:?}"),
    };
    assert_eq!(get(Endpoint::Health), json!({"status": "OK"}));
    assert_eq!(get(Endpoint::Version), json!({"version": env!("CARGO_PKG_VERSION")}));
    let list = get(Endpoint::Models);
    assert_eq!(list["object"], "list");
    assert_eq!(
        list["data"][1],
        json!({
            "id": "m", "object": "model", "created": 1_700_000_000, "owned_by": "spinfer", "root": "m",
            "max_model_len": 256,
            "custom_metadata": {"provider_id": "ggml", "provider_resource_id": "m", "model_type": "llm"},
        })
    );
    assert_eq!(get(Endpoint::Model("m".into())), list["data"][1]);
    let error = block_on(respond(Endpoint::Model("x".into()), b"", &platform)).unwrap_err();
    assert_eq!((error.status, error.code), (404, Some("model_not_found")));
}
