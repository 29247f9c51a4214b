//! How long a step should wait for rows whose instances choose tokens, and for requests that have just come
//! (`gather`): too short, and rows miss whole steps; too long, and all wait for the slowest.
//!
//! `cargo xtask bench gather`, or by hand `cargo bench -p spinfer-tests --bench gather`.

use clap::Parser;
use serde_json::json;
use spinfer_tests::load::{Client, Prompts, millis, throughput};
use spinfer_tests::measure::{Rounds, median, quantile};
use spinfer_tests::server::{Server, Setup};

const MILLISECONDS: [u32; 7] = [0, 1, 2, 5, 10, 20, 50];
const STREAMS: [usize; 3] = [4, 8, 16];
const TOKENS: usize = 96;

/// Measures streams by how long a step waits for them.
#[derive(Parser)]
struct Options {
    #[command(flatten)]
    rounds: Rounds,
}

fn main() {
    let Options { rounds: Rounds { rounds, weights, .. } } = Options::parse();
    for weights in weights {
        let file = weights.file();
        let models = file.parent().and_then(|folder| folder.parent()).expect("folders");
        let servers = MILLISECONDS.map(|gather| {
            let gather = f64::from(gather) / 1e3;
            let nn = format!("context = 256\ngather = {gather}");
            Server::start(&Setup { models: models.to_owned(), nn, ..Setup::default() })
        });
        println!("\n### {}\n", weights.name());
        println!(
            "| streams | gather, ms | tok/s | between tokens, median, ms | 99th percentile, ms |"
        );
        println!("|---|---|---|---|---|");
        for streams in STREAMS {
            let mut found = vec![Vec::new(); servers.len()];
            for round in 0..rounds {
                let prompts = Prompts::new((streams * rounds + round) as u64).short(streams);
                for turn in 0..servers.len() {
                    let at = (turn + round) % servers.len();
                    found[at].push(run(&servers[at], &prompts));
                }
            }
            for (gather, found) in MILLISECONDS.iter().zip(found) {
                let of = |at: usize| median(&found.iter().map(|run| run[at]).collect::<Vec<_>>());
                println!("| {streams} | {gather} | {:.1} | {:.1} | {:.1} |", of(0), of(1), of(2));
            }
        }
    }
}

/// Tokens a second, and the median and the 99th percentile of the milliseconds between two tokens.
fn run(server: &Server, prompts: &[String]) -> [f64; 3] {
    let streams = Client::new(&server.url).streams(prompts, TOKENS, &json!({}));
    let gaps: Vec<f64> = streams.iter().flat_map(|stream| stream.gaps().map(millis)).collect();
    [throughput(&streams), median(&gaps), quantile(&gaps, 0.99)]
}
