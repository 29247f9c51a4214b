//! How long others wait while a prompt of 4,000 tokens is computed: the longest gap between two tokens of a
//! stream, alone and beside such a prompt, by the size of its chunks.
//!
//! `cargo xtask bench long_prompt`, or by hand `cargo bench -p spinfer-tests --bench long_prompt`.

use std::time::{Duration, Instant};

use serde_json::json;
use spinfer_tests::server::{Server, Setup};

const MODEL: &str = "smollm2-135m-instruct";
const WORDS: usize = 4000;

fn main() {
    println!(
        "| chunk | longest gap alone, ms | beside a long prompt, ms | the prompt's first token, s |"
    );
    println!("|---|---|---|---|");
    for chunk in [32, 64, 128, 256, 512] {
        let nn = format!("context = 5120\nsequences = 4\nmax_rows = 3\nchunk = {chunk}");
        let server = Server::start(&Setup { nn, ..Setup::default() });
        let (alone, _) = gaps(&server, false);
        let (beside, first) = gaps(&server, true);
        println!(
            "| {chunk} | {:.0} | {:.0} | {:.1} |",
            alone.as_secs_f64() * 1e3,
            beside.as_secs_f64() * 1e3,
            first.as_secs_f64()
        );
    }
}

/// The longest gap of a stream, and how long the long prompt took if there was one.
fn gaps(server: &Server, with_long: bool) -> (Duration, Duration) {
    let stream = json!({
        "model": MODEL, "prompt": "Once upon a time", "max_tokens": 400, "temperature": 0,
        "ignore_eos": true,
    });
    let mut events =
        server.stream(&stream).filter(|event| event.starts_with('{')).map(|_| Instant::now());
    let started = events.nth(10).expect("events");
    std::thread::scope(|scope| {
        let long = with_long.then(|| {
            scope.spawn(|| {
                let prompt = "one two three four ".repeat(WORDS / 4);
                let body =
                    json!({"model": MODEL, "prompt": prompt, "max_tokens": 1, "temperature": 0});
                assert_eq!(server.complete(&body).status, 200);
                started.elapsed()
            })
        });
        let mut last = started;
        let mut longest = Duration::ZERO;
        for event in events {
            longest = longest.max(event - last);
            last = event;
        }
        let first = long.map_or(Duration::ZERO, |long| long.join().expect("the long prompt"));
        (longest, first)
    })
}
