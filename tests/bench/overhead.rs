//! What it costs that guests are WebAssembly instances that talk HTTP: what an instance does between two
//! steps (choose a token, make text and JSON of it, write it), as a share of the step, with all cores at
//! it where there are several; how long the scheduler waits from one step's end to the next's beginning,
//! which has the host's own work and the waking of threads in it; and the same streams in this process by
//! llama.cpp alone.
//!
//! `cargo xtask bench overhead`, or by hand `cargo bench -p spinfer-tests --bench overhead`.

use std::time::Instant;

use clap::Parser;
use serde_json::json;
use spinfer_llama::{Batch, Context, Token};
use spinfer_tests::load::Client;
use spinfer_tests::measure::{Rounds, median};
use spinfer_tests::reference::{Reference, best};
use spinfer_tests::server::{Server, Setup};

const TOKENS: usize = 96;

/// Measures what guests cost.
#[derive(Parser)]
struct Options {
    #[command(flatten)]
    rounds: Rounds,

    /// More lines of [nn]
    #[arg(long, default_value = "")]
    nn: String,
}

/// One kind of load.
struct Load {
    name: &'static str,
    streams: usize,
    sampled: bool,
}

const LOADS: [Load; 4] = [
    Load { name: "1 stream, greedy", streams: 1, sampled: false },
    Load { name: "1 stream, temperature 0.8, top_p 0.95", streams: 1, sampled: true },
    Load { name: "16 streams, greedy", streams: 16, sampled: false },
    Load { name: "16 streams, temperature 0.8, top_p 0.95", streams: 16, sampled: true },
];

const HEAD: &str = "\
| | step in llama.cpp, ms | an instance between steps, ms | share | between steps, ms | share | tok/s \
| llama.cpp alone, tok/s | ratio |
|---|---|---|---|---|---|---|---|---|";

/// What one run of a load has given.
#[derive(Clone, Copy)]
struct Figures {
    /// Seconds of a step in llama.cpp.
    step: f64,
    /// Seconds between two steps.
    gap: f64,
    /// Seconds of one instance between two steps.
    guest: f64,
    /// Tokens a second, of the server and of llama.cpp alone.
    server: f64,
    alone: f64,
}

fn main() {
    let options = Options::parse();
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    for weights in options.rounds.weights.iter().copied() {
        println!("\n### {}\n", weights.name());
        println!("{HEAD}");
        let file = weights.file();
        let setup = Setup {
            models: file.parent().and_then(|folder| folder.parent()).expect("folders").to_owned(),
            nn: format!("context = 2048\n{}", options.nn),
            environment: vec![("RUST_LOG".into(), "info".into())],
            ..Setup::default()
        };
        let server = Server::start(&setup);
        let reference = Reference::load(&file);
        let mut context = reference.context(16);
        for load in &LOADS {
            run(&server, load);
            let rounds: Vec<Figures> = (0..options.rounds.rounds)
                .map(|_| Figures { alone: alone(&mut context, load.streams), ..run(&server, load) })
                .collect();
            let of = |figure: fn(&Figures) -> f64| {
                median(&rounds.iter().map(figure).collect::<Vec<_>>())
            };
            println!(
                "| {} | {:.2} | {:.3} | {:.1} % | {:.3} | {:.1} % | {:.1} | {:.1} | {:.3} |",
                load.name,
                of(|f| f.step) * 1e3,
                of(|f| f.guest) * 1e3,
                of(|f| f.guest / f.step) * 1e2 * (load.streams as f64 / cores).max(1.0),
                of(|f| f.gap) * 1e3,
                of(|f| f.gap / f.step) * 1e2,
                of(|f| f.server),
                of(|f| f.alone),
                of(|f| f.server / f.alone),
            );
        }
    }
}

/// The streams on the server.
fn run(server: &Server, load: &Load) -> Figures {
    let before = sums(server);
    let fields = match load.sampled {
        true => json!({"temperature": 0.8, "top_p": 0.95}),
        false => json!({}),
    };
    let prompts: Vec<String> =
        (0..load.streams).map(|index| format!("{index}: Once upon a time there was")).collect();
    let streams = Client::new(&server.url).streams(&prompts, TOKENS, &fields);
    let begin = streams.iter().map(|stream| stream.span().0).min().expect("a stream");
    let end = streams.iter().map(|stream| stream.span().1).max().expect("a stream");
    let tokens = (TOKENS - 1) * load.streams;
    let after = sums(server);
    let mean = |at: usize| (after[at] - before[at]) / (after[at + 1] - before[at + 1]);
    Figures {
        step: mean(0),
        gap: mean(2),
        guest: mean(4),
        server: tokens as f64 / (end - begin).as_secs_f64(),
        alone: 0.0,
    }
}

/// Sums and counts of the histograms of steps and of what is between them.
fn sums(server: &Server) -> [f64; 6] {
    let text = server.get("/metrics").text;
    [
        "spinfer_step_seconds_sum",
        "spinfer_step_seconds_count",
        "spinfer_step_gap_seconds_sum",
        "spinfer_step_gap_seconds_count",
        "spinfer_guest_seconds_sum",
        "spinfer_guest_seconds_count",
    ]
    .map(|name| {
        let line = text.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.rsplit_once(' ')?.1.parse().ok()).unwrap_or(0.0)
    })
}

/// The same number of sequences by llama.cpp alone, one after the other choosing the likeliest token.
fn alone(context: &mut Context, streams: usize) -> f64 {
    const PROMPT: [Token; 8] = [504, 3575, 282, 4649, 314, 253, 2988, 1000];
    let mut batch = Batch::new();
    for sequence in 0..streams as i32 {
        context.remove(sequence);
        for (position, token) in PROMPT.into_iter().enumerate() {
            batch.push(token, position as u32, sequence, position + 1 == PROMPT.len());
        }
    }
    context.decode(&batch).expect("decodes");
    let chosen = |context: &Context, entries: &mut dyn Iterator<Item = usize>| {
        entries.map(|entry| best(context.logits(entry).expect("logits")).0).collect::<Vec<_>>()
    };
    let ends = &mut (0..streams).map(|sequence| (sequence + 1) * PROMPT.len() - 1);
    let mut last = chosen(context, ends);
    let began = Instant::now();
    for step in 1..TOKENS {
        batch.clear();
        for (sequence, token) in last.iter().enumerate() {
            batch.push(*token, (PROMPT.len() + step - 1) as u32, sequence as i32, true);
        }
        context.decode(&batch).expect("decodes");
        last = chosen(context, &mut (0..streams));
    }
    ((TOKENS - 1) * streams) as f64 / began.elapsed().as_secs_f64()
}
