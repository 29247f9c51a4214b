//! What a new instance costs: from the request's arrival to the first `compute`, with the snapshot and
//! without, for the default model and for one with a vocabulary of 262k tokens.
//!
//! `cargo bench -p spinfer-tests --bench instance_start`; it wants what `cargo xtask test` sets up.

use serde_json::json;
use spinfer_tests::server::{Server, Setup};

const MODELS: [&str; 2] = ["smollm2-135m-instruct", "gemma-3-270m"];

fn main() {
    println!(
        "{:<24} {:<10} {:>9} {:>18} {:>20}",
        "model", "snapshot", "requests", "instantiated (µs)", "first compute (µs)"
    );
    for model in MODELS {
        for (snapshot, requests) in [(true, 300), (false, 20)] {
            let arguments = if snapshot { vec![] } else { vec!["--no-snapshot".to_owned()] };
            let setup = Setup { ai_models: vec![model.into()], arguments, ..Setup::default() };
            let server = Server::start(&setup);
            let body = json!({
                "model": model,
                "prompt": "The history of the railway begins with wagonways in the mines of Europe, where",
                "max_tokens": 1,
            });
            for _ in 0..requests {
                assert_eq!(server.complete(&body).status, 200);
            }
            let output = server.output();
            let median = |field: &str| {
                let mut values: Vec<u64> =
                    output.lines().filter_map(|line| number(line, field)).collect();
                values.sort();
                values.get(values.len() / 2).copied().unwrap_or(0)
            };
            println!(
                "{model:<24} {:<10} {requests:>9} {:>18} {:>20}",
                if snapshot { "yes" } else { "no" },
                median("instantiated_us="),
                median("first_compute_us="),
            );
        }
    }
}

/// The number behind `field` in a line of the log.
fn number(line: &str, field: &str) -> Option<u64> {
    let rest = &line[line.find(field)? + field.len()..];
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok()
}
