//! The server beside llama.cpp's own `llama-server`: the same weights, threads, context and prompts, in
//! turn, in one run. Prints a table of both and of their ratios.
//!
//! `cargo xtask bench llama_server` builds what it needs. By hand, with `SPINFER_LLAMA_SERVER` naming the
//! program: `cargo bench -p spinfer-tests --bench llama_server -- --rounds 7 --weights q4_1`.

mod bandwidth;
mod measures;
mod peers;
mod table;

use clap::Parser;
use spinfer_tests::load::Prompts;
use spinfer_tests::measure::Rounds;
use spinfer_tests::models::Weights;

use measures::MEASURES;
use peers::{Peer, start_llama_server, start_spinfer};
use table::Table;

/// Measures the server beside llama-server.
#[derive(Parser)]
struct Options {
    #[command(flatten)]
    rounds: Rounds,

    /// Only what has this in its name
    #[arg(long, default_value = "")]
    only: String,

    /// More lines of [nn] for our server
    #[arg(long, default_value = "")]
    nn: String,
}

fn main() {
    let options = Options::parse();
    println!("{}", bandwidth::machine());
    let bandwidth = bandwidth::measure();
    println!("memory bandwidth, reading with all cores: {:.1} GB/s", bandwidth / 1e9);
    for weights in &options.rounds.weights {
        compare(*weights, &options, bandwidth);
    }
}

/// One kind of weights: all measures, in rounds.
fn compare(weights: Weights, options: &Options, bandwidth: f64) {
    let file = weights.file();
    let peers = [start_spinfer(&file, &options.nn), start_llama_server(&file)];
    let mut table = Table::new(&peers.each_ref().map(|peer| peer.name));
    let rounds = options.rounds.rounds;
    for round in 0..rounds {
        eprintln!("{}: round {} of {}", weights.name(), round + 1, rounds);
        let measures = MEASURES.iter().enumerate();
        for (number, measure) in measures.filter(|(_, m)| m.name.contains(&options.only)) {
            let series = (number * rounds + round) as u64;
            let once = |peer: &Peer| (measure.take)(peer, &mut Prompts::new(series));
            // Whoever is first has a cooler machine: they take turns.
            let [ours, theirs] = match round % 2 {
                0 => peers.each_ref().map(once),
                _ => {
                    let theirs = once(&peers[1]);
                    [once(&peers[0]), theirs]
                }
            };
            for ((column, ours), theirs) in measure.columns.iter().zip(ours).zip(theirs) {
                table.add(column, ours, theirs);
            }
        }
    }
    println!("\n### {}\n\n{table}", weights.name());
    let bytes = weights.bytes_per_token();
    println!(
        "A token of one stream reads {:.1} MB of weights: at most {:.0} tok/s by the bandwidth.",
        bytes as f64 / 1e6,
        bandwidth / bytes as f64
    );
}
