//! The paths around the endpoint, and what every answer has.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::json;
use spinfer_tests::server::{Backend, backend};

use crate::{MODEL, SERVER};

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

#[test]
fn http_2_is_served_too() {
    // The connection preface and an empty SETTINGS frame; the server answers with its own SETTINGS.
    let mut stream = TcpStream::connect(&SERVER.address).unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    let mut head = [0; 9];
    stream.read_exact(&mut head).unwrap();
    assert_eq!(head[3], 4, "a SETTINGS frame");
}

/// The headers of an answer to a request with these headers.
fn ask(method: &str, path: &str, headers: &[(&str, &str)]) -> (u16, String) {
    let mut request = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n");
    if !headers.iter().any(|(name, _)| *name == "host") {
        request += "host: localhost\r\n";
    }
    for (name, value) in headers {
        request += &format!("{name}: {value}\r\n");
    }
    let mut stream = TcpStream::connect(&SERVER.address).unwrap();
    stream.write_all((request + "\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (status, answer.to_lowercase())
}

#[test]
fn preflights_list_what_browsers_ask_for() {
    let (status, answer) = ask(
        "OPTIONS",
        "/v1/completions",
        &[
            ("origin", "http://localhost:8080"),
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", "authorization,x-stainless-os"),
        ],
    );
    assert_eq!(status, 204, "{answer}");
    for line in [
        "access-control-allow-origin: http://localhost:8080",
        "access-control-allow-headers: authorization, content-type, x-stainless-os",
        "access-control-allow-methods: post, options",
        "vary: origin",
        "allow: post, options",
    ] {
        assert!(answer.contains(&format!("{line}\r\n")), "{line} in {answer}");
    }
    let (status, answer) = ask("OPTIONS", "/v1/completions", &[("origin", "https://example.org")]);
    assert_eq!(status, 204);
    assert!(!answer.contains("access-control-allow-origin"), "{answer}");
    assert_eq!(ask("OPTIONS", "/v1/nothing", &[]).0, 404);
}

#[test]
fn pages_of_this_machine_may_read_answers_and_errors() {
    for (path, status) in [("/v1/models", 200), ("/v1/completions", 405), ("/nowhere", 404)] {
        let (found, answer) = ask("GET", path, &[("origin", "http://127.0.0.1:5173")]);
        assert_eq!(found, status, "{answer}");
        assert!(answer.contains("access-control-allow-origin: http://127.0.0.1:5173"), "{answer}");
        assert!(answer.contains("access-control-expose-headers: x-request-id"), "{answer}");
    }
    let (_, answer) = ask("GET", "/v1/models", &[("origin", "https://example.org")]);
    assert!(!answer.contains("access-control-allow-origin"), "{answer}");
}

#[test]
fn names_of_other_machines_are_refused() {
    for path in ["/v1/models", "/metrics", "/v1/health"] {
        let (status, answer) = ask("GET", path, &[("host", "rebound.example.org")]);
        assert_eq!(status, 403, "{answer}");
        assert!(answer.contains("\"code\":\"host_not_allowed\""), "{answer}");
        assert!(answer.contains("x-request-id:"), "{answer}");
    }
    assert_eq!(ask("GET", "/v1/health", &[("host", "[::1]:3000")]).0, 200);
}

#[test]
fn text_and_tokens_become_each_other() {
    let post = |path: &str, body: serde_json::Value| {
        SERVER.post(path, "application/json", body.to_string().as_bytes())
    };
    let text = "Hello, wörld 🙂<|im_end|>\n";
    let answer = post("/tokenize", json!({"model": MODEL, "prompt": text})).json();
    let count = answer["tokens"].as_array().unwrap().len();
    assert_eq!(answer["count"], count);
    let context = SERVER.get("/v1/models").json()["data"][0]["max_model_len"].clone();
    assert_eq!(answer["max_model_len"], context);
    let back = post("/detokenize", json!({"tokens": answer["tokens"]})).json();
    assert_eq!(back, json!({"prompt": text}));
    let bad = post("/detokenize", json!({"tokens": [1, 49152]}));
    assert_eq!((bad.status, &bad.json()["error"]["param"]), (400, &json!("tokens[1]")));
    assert_eq!(post("/tokenize", json!({"prompt": 5})).status, 400);
    assert_eq!(post("/tokenize", json!({"prompt": "a", "model": "none"})).status, 404);
    let info = SERVER.get("/tokenizer_info").json();
    assert_eq!(
        (&info["eos_token"], &info["bos_token"]),
        (&json!("<|im_end|>"), &json!("<|im_start|>"))
    );
    assert!(info["chat_template"].as_str().unwrap().contains("im_start"));
    assert_eq!(SERVER.get("/tokenizer_info?model=none").status, 404);
}

#[test]
fn older_paths_lead_to_the_same_endpoints() {
    assert_eq!(SERVER.get("/v1/openai/v1/models").json(), SERVER.get("/v1/models").json());
    assert_eq!(SERVER.get("/v1/openai/v1/health").status, 200);
    assert_eq!(SERVER.get("/v1/version").json(), json!({"version": env!("CARGO_PKG_VERSION")}));
    let providers = SERVER.get("/v1/providers").json();
    let provider = match backend() {
        Backend::Ggml => "ggml",
        Backend::Openvino => "openvino",
    };
    assert_eq!(providers["data"][0]["provider_id"], provider);
    assert_eq!(providers["data"][0]["health"], json!({"status": "OK"}));
}

#[test]
fn the_clients_own_request_id_is_given_back() {
    let (_, answer) = ask("GET", "/v1/health", &[("x-request-id", "my-id.1")]);
    assert!(answer.contains("x-request-id: my-id.1\r\n"), "{answer}");
    let long = "x".repeat(129);
    let (_, answer) = ask("GET", "/v1/health", &[("x-request-id", &long)]);
    assert!(answer.contains("x-request-id: req-"), "{answer}");
}
