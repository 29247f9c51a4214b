//! `POST /v1/completions` and what is around it, against the running server with the real model.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{LazyLock, Mutex};

use serde_json::{Value, json};
use spinfer_tests::client::joined;
use spinfer_tests::reference::{Reference, best};
use spinfer_tests::server::{Server, Setup};

const MODEL: &str = "smollm2-135m-instruct";

/// One server for all tests of this file.
static SERVER: LazyLock<Server> = LazyLock::new(|| Server::start(&Setup::default()));

/// Tests that compare numbers of the server's metrics, or answers that must be computed alone, hold
/// this.
static ALONE: Mutex<()> = Mutex::new(());

const PROMPTS: [&str; 24] = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n",
    "1, 1, 2, 3, 5, 8,",
    "Q: What is photosynthesis?\nA:",
    "<|im_start|>user\nWrite a haiku about rain.<|im_end|>\n<|im_start|>assistant\n",
    "La capitale de l'Italie est",
    "日本の首都は",
    "مرحبا",
    "SELECT name FROM users WHERE",
    "The quick brown fox jumps over the lazy dog. The quick brown fox",
    "{\"name\": \"Ada\", \"age\":",
    "Dear Sir or Madam,\n\nI am writing to",
    "# Introduction\n\nThis paper presents",
    "In 1969, humans first",
    "   leading spaces and\ttabs",
    "🙂🙃🙂🙃🙂",
    "fn main() {\n    println!(",
    "A",
    "\n\n\n",
    "The three primary colors are red,",
    "To make bread you need flour, water,",
    "Shakespeare wrote \"To be, or not to be",
    "2 + 2 = 4\n3 + 3 = 6\n4 + 4 =",
];

fn greedy(prompt: &str, max_tokens: usize) -> Value {
    json!({"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0})
}

fn alone() -> impl Drop {
    ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[test]
fn greedy_text_equals_llama_cpp_s_own() {
    let _alone = alone();
    let reference = Reference::default_model();
    for prompt in PROMPTS {
        let expected = reference.greedy(prompt, 64);
        let answer = SERVER.complete(&greedy(prompt, 64));
        assert_eq!(answer.completion(), expected.text, "after {prompt:?}");
        let json = answer.json();
        let finish = if expected.ended { "stop" } else { "length" };
        assert_eq!(json["choices"][0]["finish_reason"], finish);
        let prompt_tokens = reference.model.tokenize(prompt, true, true).unwrap().len();
        let completion_tokens = expected.tokens.len() + usize::from(expected.ended);
        assert_eq!(
            json["usage"],
            json!({
                "prompt_tokens": prompt_tokens,
                "completion_tokens": completion_tokens,
                "total_tokens": prompt_tokens + completion_tokens,
            })
        );
    }
}

#[test]
fn a_prompt_of_several_chunks_equals_llama_cpp_s_own() {
    let _alone = alone();
    let prompt = "The history of the railway begins with wagonways in mines. ".repeat(60);
    let expected = Reference::default_model().greedy(&prompt, 16);
    assert_eq!(SERVER.complete(&greedy(&prompt, 16)).completion(), expected.text);
}

#[test]
fn the_answer_has_the_reference_s_shape() {
    let json = SERVER.complete(&greedy("The capital of France is", 4)).json();
    assert_eq!(json["object"], "text_completion");
    assert_eq!(json["model"], MODEL);
    assert!(json["id"].as_str().unwrap().starts_with("cmpl-"));
    assert!(json["created"].as_u64().unwrap() > 1_700_000_000);
    assert!(json["system_fingerprint"].is_string());
    let choice = &json["choices"][0];
    assert_eq!(choice["index"], 0);
    assert_eq!(choice["logprobs"], Value::Null);
    assert_eq!(choice["finish_reason"], "length");
}

#[test]
fn the_first_chunk_leaves_before_the_second_token_is_computed() {
    let request_id = "first-chunk-test";
    let body =
        json!({"model": MODEL, "prompt": "Once", "max_tokens": 8, "stream": true}).to_string();
    let mut stream = TcpStream::connect(&SERVER.address).unwrap();
    write!(
        stream,
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         x-request-id: {request_id}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("[DONE]"), "{answer}");
    // One call reserves, one computes the prompt; the third would be the second token's.
    let line = SERVER
        .wait_for_line(|line| line.contains("the first chunk leaves") && line.contains(request_id));
    assert!(line.contains("computes=2"), "{line}");
}

#[test]
fn joined_chunks_equal_the_whole_answer() {
    let _alone = alone();
    for extra in [json!({"temperature": 0}), json!({"seed": 7, "temperature": 1.0, "top_p": 0.9})] {
        for prompt in ["Once upon a time", "日本の首都は", "🙂🙃🙂"] {
            let mut body = json!({"model": MODEL, "prompt": prompt, "max_tokens": 32});
            body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            let whole = SERVER.complete(&body);
            let chunks = SERVER.chunks(&body);
            assert_eq!(joined(&chunks), whole.completion());
            let (last, others) = chunks.split_last().unwrap();
            assert_eq!(
                last["choices"][0]["finish_reason"],
                whole.json()["choices"][0]["finish_reason"]
            );
            for chunk in others {
                assert_eq!(chunk["choices"][0]["finish_reason"], Value::Null);
                assert_eq!(chunk["object"], "text_completion");
                assert_eq!(chunk["id"], last["id"]);
                assert!(chunk.get("usage").is_none());
            }
        }
    }
}

#[test]
fn usage_comes_in_a_last_chunk_of_its_own_when_asked_for() {
    let mut body = greedy("Once upon a time", 5);
    body["stream_options"] = json!({"include_usage": true});
    let chunks = SERVER.chunks(&body);
    let (last, others) = chunks.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], 5);
    assert!(others.iter().all(|chunk| chunk.get("usage") == Some(&Value::Null)));
}

#[test]
fn a_seed_makes_an_answer_repeatable_and_its_absence_different() {
    let _alone = alone();
    let mut body = json!({"model": MODEL, "prompt": "Once", "max_tokens": 24, "temperature": 1.5});
    let texts: BTreeSet<String> = (0..4).map(|_| SERVER.complete(&body).completion()).collect();
    assert!(texts.len() > 1, "unseeded requests differ");
    body["seed"] = json!(42);
    let texts: BTreeSet<String> = (0..3).map(|_| SERVER.complete(&body).completion()).collect();
    assert_eq!(texts.len(), 1, "a seed repeats");
    let first = texts.first().unwrap().clone();
    body["seed"] = json!(-43);
    assert_ne!(SERVER.complete(&body).completion(), first);
}

#[test]
fn ids_are_unique() {
    let ids: BTreeSet<String> = (0..8)
        .map(|_| SERVER.complete(&greedy("A", 1)).json()["id"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(ids.len(), 8);
}

#[test]
fn stop_strings_cut_the_text_before_their_earliest_match() {
    let _alone = alone();
    let whole = SERVER.complete(&greedy("1, 2, 3, 4,", 24)).completion();
    assert!(whole.contains(" 7, 8"), "{whole:?}");
    let mut body = greedy("1, 2, 3, 4,", 24);
    for stop in [json!(" 7, 8"), json!(["nothing", " 8,", " 7, 8"])] {
        body["stop"] = stop;
        let answer = SERVER.complete(&body);
        assert_eq!(answer.completion(), whole[..whole.find(" 7, 8").unwrap()]);
        assert_eq!(answer.json()["choices"][0]["finish_reason"], "stop");
        let chunks = SERVER.chunks(&body);
        assert_eq!(joined(&chunks), answer.completion());
        assert!(!joined(&chunks).contains(" 7"), "no part of a stop string is sent");
    }
    body["stop"] = json!("not there");
    assert_eq!(SERVER.complete(&body).completion(), whole);
}

#[test]
fn nothing_generated_is_an_answer_too() {
    let mut body = greedy("Once", 0);
    let answer = SERVER.complete(&body);
    assert_eq!(answer.completion(), "");
    assert_eq!(answer.json()["choices"][0]["finish_reason"], "length");
    assert_eq!(answer.json()["usage"]["completion_tokens"], 0);
    body["prompt"] = json!("");
    body["max_tokens"] = json!(2);
    assert_eq!(SERVER.complete(&body).status, 200, "an empty prompt starts from BOS");
}

/// The largest difference of logits between what is computed alone and what is computed with others:
/// the prompts in one batch, then a few steps of all.
fn what_batching_moves(prompts: &[&str]) -> f32 {
    let reference = Reference::default_model();
    let mut together = reference.context(prompts.len() as u32);
    let mut singles: Vec<_> = prompts.iter().map(|_| reference.context(1)).collect();
    let mut next = Vec::new();
    let mut most = 0.0f32;
    let moved = |alone: &[f32], batched: &[f32]| {
        alone.iter().zip(batched).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
    };
    let mut batch = spinfer_llama::Batch::new();
    let mut ends = Vec::new();
    for (sequence, prompt) in prompts.iter().enumerate() {
        let ids = reference.model.tokenize(prompt, true, true).unwrap();
        for (position, &id) in ids.iter().enumerate() {
            batch.push(id, position as u32, sequence as i32, position == ids.len() - 1);
        }
        ends.push((batch.len() - 1, reference.append(&mut singles[sequence], 0, &ids)));
    }
    together.decode(&batch).unwrap();
    for (end, alone) in &ends {
        most = most.max(moved(alone, together.logits(*end).unwrap()));
        next.push(best(alone).0);
    }
    for _ in 0..16 {
        let mut batch = spinfer_llama::Batch::new();
        for (sequence, &token) in next.iter().enumerate() {
            batch.push(token, together.length(sequence as i32), sequence as i32, true);
        }
        together.decode(&batch).unwrap();
        for (sequence, token) in next.iter_mut().enumerate() {
            let alone = reference.append(&mut singles[sequence], 0, &[*token]);
            let batched = together.logits(sequence).unwrap();
            most = most.max(moved(&alone, batched));
            *token = best(&alone).0;
        }
    }
    most
}

#[test]
fn eight_at_once_are_each_what_it_is_alone() {
    let _alone = alone();
    let prompts = &PROMPTS[..8];
    let moved = what_batching_moves(prompts);
    println!("batching moves logits by up to {moved}");
    let answers: Vec<String> = std::thread::scope(|scope| {
        let tasks: Vec<_> = prompts
            .iter()
            .map(|prompt| scope.spawn(move || SERVER.complete(&greedy(prompt, 48)).completion()))
            .collect();
        tasks.into_iter().map(|task| task.join().unwrap()).collect()
    });
    let reference = Reference::default_model();
    for (prompt, answer) in prompts.iter().zip(answers) {
        let expected = reference.greedy(prompt, 48);
        if answer == expected.text {
            continue;
        }
        let same = answer.bytes().zip(expected.text.bytes()).take_while(|(a, b)| a == b).count();
        let token = (0..expected.tokens.len())
            .find(|&count| reference.text(&expected.tokens[..=count]).len() > same)
            .unwrap_or(expected.tokens.len() - 1);
        let margin = expected.margins[token];
        // Each of the two best may move that far.
        assert!(
            margin <= 2.0 * moved,
            "after {prompt:?}: token {token} differs, though {margin} apart, and batching moves {moved}"
        );
    }
}

#[test]
fn sixty_four_at_once_all_have_an_answer() {
    let _alone = alone();
    std::thread::scope(|scope| {
        for index in 0..64 {
            scope.spawn(move || {
                let answer = SERVER.complete(&greedy(PROMPTS[index % PROMPTS.len()], 8));
                assert_eq!(answer.status, 200, "{}", answer.text);
            });
        }
    });
}

fn error(body: &Value) -> (u16, Value) {
    let answer = SERVER.complete(body);
    let json = answer.json();
    let keys: Vec<_> = json["error"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(keys, ["code", "message", "param", "type"], "{json}");
    assert_eq!(answer.header("content-type"), "application/json");
    (answer.status, json["error"].clone())
}

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

#[test]
fn the_models_are_listed() {
    let list = SERVER.get("/v1/models").json();
    assert_eq!(list["object"], "list");
    let model = &list["data"][0];
    assert_eq!((&model["id"], &model["object"]), (&json!(MODEL), &json!("model")));
    assert!(model["max_model_len"].as_u64().unwrap() >= 1024);
    assert_eq!(model["custom_metadata"]["model_type"], "llm");
    assert_eq!(SERVER.get(&format!("/v1/models/{MODEL}")).json()["id"], MODEL);
    assert_eq!(SERVER.get("/v1/models/none").status, 404);
    assert_eq!(SERVER.get("/v1/health").json(), json!({"status": "OK"}));
}

#[test]
fn every_answer_has_a_request_id() {
    let answer = SERVER.get("/v1/health");
    assert!(answer.header("x-request-id").starts_with("req-"), "{:?}", answer.headers);
    assert_ne!(answer.header("x-request-id"), SERVER.get("/v1/health").header("x-request-id"));
    assert!(!SERVER.get("/nowhere").header("x-request-id").is_empty());
}

/// A request whose client goes away once it is being computed.
fn leave(body: &Value, metric: &str, computed: u64) {
    let before = SERVER.metric(metric);
    let body = body.to_string();
    let mut stream = TcpStream::connect(&SERVER.address).unwrap();
    write!(
        stream,
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    SERVER.wait_for_metric(metric, |value| value >= before + computed);
    drop(stream);
    SERVER.wait_for_metric("spinfer_sequences_held", |held| held == 0);
}

#[test]
fn a_client_that_leaves_in_prefill_frees_its_rows() {
    let _alone = alone();
    let before = SERVER.metric("spinfer_prefill_tokens_total");
    // Over 2,000 tokens in chunks of 512.
    leave(&greedy(&"one two three four ".repeat(600), 4), "spinfer_prefill_tokens_total", 1);
    let computed = SERVER.metric("spinfer_prefill_tokens_total") - before;
    assert!(computed < 2048, "{computed} tokens were computed for nobody");
}

#[test]
fn a_client_that_leaves_in_decode_frees_its_rows() {
    let _alone = alone();
    for stream in [false, true] {
        let before = SERVER.metric("spinfer_decode_tokens_total");
        let mut body = greedy("1, 2, 3, 4,", 2000);
        body["stream"] = json!(stream);
        leave(&body, "spinfer_decode_tokens_total", 4);
        let computed = SERVER.metric("spinfer_decode_tokens_total") - before;
        assert!(computed < 1900, "{computed} tokens were computed for nobody");
    }
}

#[test]
fn http_2_is_served_too() {
    // The connection preface and an empty SETTINGS frame; the server answers with its own SETTINGS.
    let mut stream = TcpStream::connect(&SERVER.address).unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    let mut head = [0; 9];
    stream.read_exact(&mut head).unwrap();
    assert_eq!(head[3], 4, "a SETTINGS frame");
}
