//! Clients that go away, and clients that take too long.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};
use spinfer_tests::server::{Server, Setup};

use crate::{alone, greedy, with};

/// A server that computes prompts in small chunks, so that there is much to give up.
fn server(more: &str) -> Server {
    Server::start(&Setup { nn: format!("batch = 32\ncontext = 2560\n{more}"), ..Setup::default() })
}

/// Sends the head of a request, and of its body what there is.
fn begin(server: &Server, length: usize, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(&server.address).unwrap();
    write!(
        stream,
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    stream
}

/// A request whose client goes away once it is being computed.
fn leave(server: &Server, body: &Value, metric: &str, computed: u64) {
    let before = server.metric(metric);
    let body = body.to_string();
    let stream = begin(server, body.len(), &body);
    server.wait_for_metric(metric, |value| value >= before + computed);
    drop(stream);
    server.wait_for_metric("spinfer_sequences_held", |held| held == 0);
}

#[test]
fn a_client_that_leaves_in_prefill_frees_its_rows() {
    let _alone = alone();
    let server = server("");
    // Over 2,000 tokens in chunks of 32.
    let body = greedy(&"one two three four ".repeat(600), 4);
    leave(&server, &body, "spinfer_prefill_tokens_total", 1);
    let computed = server.metric("spinfer_prefill_tokens_total");
    assert!(computed < 2048, "{computed} tokens were computed for nobody");
}

#[test]
fn a_client_that_leaves_in_decode_frees_its_rows() {
    let _alone = alone();
    let server = server("");
    for stream in [false, true] {
        let before = server.metric("vllm:generation_tokens_total");
        let mut body = greedy("1, 2, 3, 4,", 2000);
        body["stream"] = json!(stream);
        leave(&server, &body, "vllm:generation_tokens_total", 4);
        let computed = server.metric("vllm:generation_tokens_total") - before;
        assert!(computed < 1900, "{computed} tokens were computed for nobody");
    }
}

#[test]
fn a_client_that_stops_reading_is_let_go() {
    let _alone = alone();
    let server = server("client_timeout = 1.0");
    // The scores of the prompt alone, for all choices, are more than any buffers hold: some 30 MB.
    let fields = json!({
        "n": 12, "logprobs": 20, "echo": true, "stream": true, "ignore_eos": true,
    });
    let body = with(&greedy(&"one two three four ".repeat(230), 100), fields);
    let body = body.to_string();
    let stream = begin(&server, body.len(), &body);
    server.wait_for_line(|line| line.contains("a client doesn't read its answer"));
    server.wait_for_metric("spinfer_sequences_held", |held| held == 0);
    drop(stream);
    assert_eq!(server.complete(&greedy("Once", 1)).status, 200, "the server goes on");
}

#[test]
fn a_client_that_does_not_send_its_body_is_told() {
    let _alone = alone();
    let server = server("client_timeout = 0.5");
    let mut stream = begin(&server, 100, "{\"model\"");
    let mut answer = [0; 1024];
    let read = stream.read(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer[..read]).into_owned();
    assert!(answer.starts_with("HTTP/1.1 400") || answer.starts_with("HTTP/1.1 408"), "{answer}");
}
