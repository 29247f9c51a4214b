//! What is measured of each server.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::load::{Stream, text};
use crate::peers::Peer;

/// One kind of load, and what is read off it.
pub struct Measure {
    /// For `--only`.
    pub name: &'static str,
    /// What it gives.
    pub columns: &'static [Column],
    /// Puts the load on a server; a value for each column.
    pub take: fn(&Peer, round: usize) -> Vec<f64>,
}

/// One line of the table.
pub struct Column {
    /// What it says.
    pub name: &'static str,
    /// In which unit.
    pub unit: &'static str,
    /// Whether more is better.
    pub more_is_better: bool,
}

const fn rate(name: &'static str, unit: &'static str) -> Column {
    Column { name, unit, more_is_better: true }
}

const fn cost(name: &'static str, unit: &'static str) -> Column {
    Column { name, unit, more_is_better: false }
}

/// All of them, in the order of the table.
pub const MEASURES: &[Measure] = &[
    Measure {
        name: "decode",
        columns: &[rate("decode, one stream", "tok/s")],
        take: |peer, _| vec![decode(&peer.client().stream(&unique(8), 128, &GREEDY))],
    },
    Measure {
        name: "prefill",
        columns: &[rate("prefill, prompt of 1,000 words", "tok/s")],
        take: |peer, _| vec![prefill(peer)],
    },
    Measure {
        name: "first_token",
        columns: &[
            cost("first token, prompt of 8 words", "ms"),
            cost("first token, prompt of 1,000 words", "ms"),
            cost("first token, the same prompt again", "ms"),
        ],
        take: |peer, _| first_token(peer),
    },
    Measure {
        name: "streams_4",
        columns: &[
            rate("4 streams together", "tok/s"),
            cost("between tokens, median", "ms"),
            cost("between tokens, 99th percentile", "ms"),
        ],
        take: |peer, _| streams(peer, 4, &GREEDY),
    },
    Measure {
        name: "streams_8",
        columns: &[
            rate("8 streams together", "tok/s"),
            cost("between tokens, median", "ms"),
            cost("between tokens, 99th percentile", "ms"),
        ],
        take: |peer, _| streams(peer, 8, &GREEDY),
    },
    Measure {
        name: "streams_16",
        columns: &[
            rate("16 streams together", "tok/s"),
            cost("between tokens, median", "ms"),
            cost("between tokens, 99th percentile", "ms"),
        ],
        take: |peer, _| streams(peer, 16, &GREEDY),
    },
    Measure {
        name: "sampled_16",
        columns: &[rate("16 streams, temperature 0.8, top_p 0.95", "tok/s")],
        take: |peer, _| {
            let sampled = json!({"temperature": 0.8, "top_p": 0.95});
            vec![streams(peer, 16, &sampled)[0]]
        },
    },
    Measure {
        name: "requests",
        columns: &[rate("requests of one token, 8 clients", "1/s")],
        take: |peer, _| vec![requests(peer)],
    },
    Measure {
        name: "memory",
        columns: &[cost("resident memory", "MiB")],
        take: |peer, _| vec![peer.memory() as f64 / f64::from(1 << 20)],
    },
    Measure {
        name: "start",
        columns: &[cost("from the start to the first answer", "ms")],
        take: |peer, _| vec![millis(peer.start_another())],
    },
];

/// As the default body has it.
const GREEDY: Value = Value::Null;

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// A prompt that nobody has begun with before.
fn unique(words: usize) -> String {
    static SEEDS: AtomicU64 = AtomicU64::new(100_000);
    text(words, SEEDS.fetch_add(1, Ordering::Relaxed))
}

/// Tokens after the first, over the time from the first to the last.
fn decode(stream: &Stream) -> f64 {
    let (first, last) = stream.span();
    stream.gaps().count() as f64 / (last - first).as_secs_f64()
}

/// All tokens, over the time from the first request to the last token: prompts are computed in it, too.
fn throughput(streams: &[Stream]) -> f64 {
    let tokens: usize = streams.iter().map(|stream| stream.gaps().count() + 1).sum();
    let begin = streams.iter().map(Stream::began).min().expect("a stream");
    let end = streams.iter().map(|stream| stream.span().1).max().expect("a stream");
    tokens as f64 / (end - begin).as_secs_f64()
}

fn prefill(peer: &Peer) -> f64 {
    let prompt = unique(1000);
    let began = Instant::now();
    let answer = peer.client().complete(&prompt, 1);
    let took = began.elapsed();
    let tokens = answer["usage"]["prompt_tokens"].as_u64().expect("a number of tokens");
    tokens as f64 / took.as_secs_f64()
}

fn first_token(peer: &Peer) -> Vec<f64> {
    const TIMES: usize = 9;
    let first = |prompt: &str| millis(peer.client().stream(prompt, 2, &GREEDY).first());
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let short = (0..TIMES).map(|_| first(&unique(8))).collect();
    let long = unique(1000);
    let once = first(&long);
    let again = (0..TIMES).map(|_| first(&long)).collect();
    vec![median(short), once, median(again)]
}

fn streams(peer: &Peer, count: usize, fields: &Value) -> Vec<f64> {
    let prompts = (0..count).map(|_| unique(8)).collect::<Vec<_>>();
    let streams = peer.client().streams(&prompts, 96, fields);
    let mut gaps = streams.iter().flat_map(|stream| stream.gaps().map(millis)).collect::<Vec<_>>();
    gaps.sort_by(f64::total_cmp);
    let at = |share: f64| gaps[((gaps.len() - 1) as f64 * share) as usize];
    vec![throughput(&streams), at(0.5), at(0.99)]
}

fn requests(peer: &Peer) -> f64 {
    const CLIENTS: usize = 8;
    const EACH: usize = 12;
    let client = peer.client();
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                for _ in 0..EACH {
                    let answer = client.complete(&unique(8), 1);
                    assert_eq!(answer["usage"]["completion_tokens"], 1, "{answer}");
                }
            });
        }
    });
    (CLIENTS * EACH) as f64 / began.elapsed().as_secs_f64()
}
