//! What is measured of each server.

use std::time::Instant;

use serde_json::{Value, json};
use spinfer_tests::load::{Prompts, millis, throughput};
use spinfer_tests::measure::{median, quantile};

use crate::peers::Peer;

/// One kind of load, and what is read off it.
pub struct Measure {
    /// For `--only`.
    pub name: &'static str,
    /// What it gives.
    pub columns: &'static [Column],
    /// How often in a round the servers take turns; what counts is the median.
    pub times: usize,
    /// Puts the load on a server; a value for each column.
    pub take: fn(&Peer, &mut Prompts) -> Vec<f64>,
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

/// The columns of [`streams`].
const fn together(name: &'static str) -> [Column; 3] {
    let (median, slowest) = ("between tokens, median", "between tokens, 99th percentile");
    [rate(name, "tok/s"), cost(median, "ms"), cost(slowest, "ms")]
}

/// All of them, in the order of the table.
pub const MEASURES: &[Measure] = &[
    Measure {
        name: "decode",
        columns: &[rate("decode, one stream", "tok/s")],
        times: 3,
        take: |peer, prompts| vec![peer.client().stream(&prompts.short(1)[0], 128, &GREEDY).rate()],
    },
    Measure {
        name: "prefill",
        columns: &[rate("prefill, prompt of 1,000 words", "tok/s")],
        times: 1,
        take: |peer, prompts| vec![prefill(peer, &prompts.long(1000))],
    },
    Measure {
        name: "first_token_short",
        columns: &[cost("first token, prompt of 22 tokens", "ms")],
        times: 15,
        take: |peer, prompts| first_token(peer, &prompts.short(1)[0]),
    },
    Measure {
        name: "first_token_long",
        columns: &[cost("first token, prompt of 1,000 words", "ms")],
        times: 1,
        take: |peer, prompts| first_token(peer, &prompts.long(1000)),
    },
    Measure {
        name: "first_token_again",
        columns: &[cost("first token, a prompt of 1,000 words again", "ms")],
        times: 15,
        take: |peer, prompts| first_token(peer, &prompts.same(1000)),
    },
    Measure {
        name: "streams_4",
        columns: &together("4 streams together"),
        times: 3,
        take: |peer, prompts| streams(peer, &prompts.short(4), &GREEDY),
    },
    Measure {
        name: "streams_8",
        columns: &together("8 streams together"),
        times: 2,
        take: |peer, prompts| streams(peer, &prompts.short(8), &GREEDY),
    },
    Measure {
        name: "streams_16",
        columns: &together("16 streams together"),
        times: 1,
        take: |peer, prompts| streams(peer, &prompts.short(16), &GREEDY),
    },
    Measure {
        name: "sampled_16",
        columns: &[rate("16 streams, temperature 0.8, top_p 0.95", "tok/s")],
        times: 1,
        take: |peer, prompts| {
            let sampled = json!({"temperature": 0.8, "top_p": 0.95, "top_k": 0, "min_p": 0});
            vec![streams(peer, &prompts.short(16), &sampled)[0]]
        },
    },
    Measure {
        name: "requests",
        columns: &[rate("requests of one token, 8 clients", "1/s")],
        times: 1,
        take: |peer, prompts| vec![requests(peer, prompts)],
    },
    Measure {
        name: "memory",
        columns: &[cost("resident memory", "MiB")],
        times: 1,
        take: |peer, _| vec![peer.memory() as f64 / f64::from(1 << 20)],
    },
    Measure {
        name: "start",
        columns: &[cost("from the start to the first answer", "ms")],
        times: 1,
        take: |peer, _| vec![millis(peer.start_another())],
    },
];

/// As the default body has it.
const GREEDY: Value = Value::Null;

fn prefill(peer: &Peer, prompt: &str) -> f64 {
    let began = Instant::now();
    let answer = peer.client().complete(prompt, 1);
    let took = began.elapsed();
    let tokens = answer["usage"]["prompt_tokens"].as_u64().expect("a number of tokens");
    tokens as f64 / took.as_secs_f64()
}

fn first_token(peer: &Peer, prompt: &str) -> Vec<f64> {
    vec![millis(peer.client().stream(prompt, 2, &GREEDY).first())]
}

fn streams(peer: &Peer, prompts: &[String], fields: &Value) -> Vec<f64> {
    let streams = peer.client().streams(prompts, 96, fields);
    let gaps = streams.iter().flat_map(|stream| stream.gaps().map(millis)).collect::<Vec<_>>();
    vec![throughput(&streams), median(&gaps), quantile(&gaps, 0.99)]
}

fn requests(peer: &Peer, prompts: &mut Prompts) -> f64 {
    const CLIENTS: usize = 8;
    const EACH: usize = 12;
    let client = peer.client();
    let prompts = prompts.short(CLIENTS * EACH);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for prompts in prompts.chunks(EACH) {
            scope.spawn(move || {
                for prompt in prompts {
                    let answer = client.complete(prompt, 1);
                    assert_eq!(answer["usage"]["completion_tokens"], 1, "{answer}");
                }
            });
        }
    });
    (CLIENTS * EACH) as f64 / began.elapsed().as_secs_f64()
}
