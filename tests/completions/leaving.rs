//! Clients that go away.

use std::io::Write;
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::{SERVER, alone, greedy};

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
