//! What is wrong with a request, and how the answer says so.

use serde_json::{Value, json};

use crate::{SERVER, error, greedy};

#[test]
fn fields_that_are_wrong_are_named() {
    let cases = [
        ("prompt", json!(5)),
        ("prompt", json!({"text": "x"})),
        ("model", json!(5)),
        ("model", json!(null)),
        ("max_tokens", json!(-1)),
        ("max_tokens", json!(1.5)),
        ("max_tokens", json!("4")),
        ("temperature", json!("hot")),
        ("temperature", json!(-0.1)),
        ("temperature", json!(2.1)),
        ("top_p", json!(1.1)),
        ("top_p", json!(-0.1)),
        ("seed", json!(1.5)),
        ("seed", json!("x")),
        ("stop", json!("")),
        ("stop", json!(["a", 5])),
        ("stop", json!(vec!["x"; 65])),
        ("stream", json!("yes")),
        ("user", json!(5)),
    ];
    for (field, value) in cases {
        let mut body = greedy("Once", 1);
        body[field] = value.clone();
        let (status, error) = error(&body);
        assert_eq!(status, 400, "{field}: {value}: {error}");
        let param = error["param"].as_str().unwrap_or_default();
        assert!(param.starts_with(field), "{field}: {value}: {error}");
        assert_eq!(error["type"], "invalid_request_error");
    }
    assert_eq!(SERVER.complete(&greedy("Once", 1)).status, 200, "the server goes on");
}

#[test]
fn every_optional_field_may_be_null_and_unknown_ones_are_ignored() {
    let mut body = greedy("Once", 1);
    for field in [
        "best_of",
        "echo",
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "max_tokens",
        "n",
        "presence_penalty",
        "seed",
        "stop",
        "stream",
        "stream_options",
        "temperature",
        "top_p",
        "user",
        "suffix",
        "something_else",
    ] {
        body[field] = Value::Null;
    }
    body["another"] = json!({"x": 1});
    assert_eq!(SERVER.complete(&body).status, 200);
}

#[test]
fn requests_that_are_wrong_as_a_whole_have_the_envelope_too() {
    let post = |content_type: &str, body: &[u8]| SERVER.post("/v1/completions", content_type, body);
    for body in ["", "{", "[]", "5", "not json", "{\"model\": NaN}"] {
        let answer = post("application/json", body.as_bytes());
        assert_eq!(answer.status, 400, "{body:?}");
        assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
    }
    assert_eq!(post("application/json", b"\xff\xfe").status, 400);
    assert_eq!(post("text/plain", greedy("a", 1).to_string().as_bytes()).status, 415);
    let (status, unknown) = error(&json!({"model": "gpt-9", "prompt": "a"}));
    assert_eq!((status, &unknown["code"]), (404, &json!("model_not_found")));
    assert_eq!(unknown["param"], "model");
    let wrong = SERVER.get("/v1/nothing");
    assert_eq!(
        (wrong.status, wrong.json()["error"]["type"].as_str()),
        (404, Some("invalid_request_error"))
    );
    let wrong = SERVER.get("/v1/completions");
    assert_eq!((wrong.status, wrong.header("allow")), (405, "POST"));
    assert!(wrong.json()["error"]["message"].is_string());
    assert_eq!(SERVER.request("DELETE", "/v1/models").status, 405);
    let big = format!("{{\"prompt\": \"{}\"}}", "x".repeat(2 << 20));
    assert_eq!(post("application/json", big.as_bytes()).status, 413);
    assert_eq!(SERVER.complete(&greedy("Once", 1)).status, 200, "the server goes on");
}

#[test]
fn a_prompt_longer_than_the_context_is_refused_with_the_numbers() {
    let context = SERVER.get("/v1/models").json()["data"][0]["max_model_len"].as_u64().unwrap();
    let (status, error) = error(&greedy(&"word ".repeat(context as usize + 10), 1));
    assert_eq!((status, error["code"].as_str()), (400, Some("context_length_exceeded")));
    assert!(error["message"].as_str().unwrap().contains(&context.to_string()), "{error}");
    let mut body = greedy("Once", context as usize);
    assert_eq!(self::error(&body).0, 400, "prompt and max_tokens count together");
    body["max_tokens"] = json!(u64::MAX);
    assert_eq!(self::error(&body).0, 400);
}

/// The answer must arrive although the client is still sending.
#[test]
fn a_body_of_a_hundred_megabytes_is_refused() {
    let big = format!("{{\"prompt\": \"{}\"}}", "x".repeat(100 << 20));
    for path in ["/v1/completions", "/tokenize"] {
        let answer = SERVER.post(path, "application/json", big.as_bytes());
        assert_eq!(answer.status, 413, "{}", answer.text);
        assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
    }
    assert_eq!(SERVER.complete(&greedy("Once", 1)).status, 200, "the server goes on");
}
