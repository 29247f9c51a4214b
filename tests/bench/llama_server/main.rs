//! The server beside llama.cpp's own `llama-server`: the same weights, threads, context and prompts, in
//! turn, in one run. Prints a table of both and of their ratios.
//!
//! `cargo xtask bench llama_server` builds what it needs. By hand, with `SPINFER_LLAMA_SERVER` naming the
//! program: `cargo bench -p spinfer-tests --bench llama_server -- --rounds 7 --weights q4_1`.

mod bandwidth;
mod load;
mod measures;
mod peers;
mod table;

use clap::Parser;
use spinfer_tests::models::Weights;

use measures::MEASURES;
use peers::{Peer, start_llama_server, start_spinfer};
use table::Table;

/// Measures the server beside llama-server.
#[derive(Parser)]
struct Options {
    /// How often each thing is measured, in turn
    #[arg(long, default_value_t = 7)]
    rounds: usize,

    /// Of which weights
    #[arg(long, value_delimiter = ',', default_value = "q4_1,q4_0,q8_0")]
    weights: Vec<Weights>,

    /// Only what has this in its name
    #[arg(long, default_value = "")]
    only: String,

    /// More lines of [nn] for our server
    #[arg(long, default_value = "")]
    nn: String,

    /// What cargo passes to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let options = Options::parse();
    println!("{}", bandwidth::machine());
    let bandwidth = bandwidth::measure();
    println!("memory bandwidth, reading with all cores: {:.1} GB/s", bandwidth / 1e9);
    for weights in &options.weights {
        compare(*weights, &options, bandwidth);
    }
}

/// One kind of weights: all measures, in rounds.
fn compare(weights: Weights, options: &Options, bandwidth: f64) {
    let file = weights.file();
    let peers = [start_spinfer(&file, &options.nn), start_llama_server(&file)];
    let mut table = Table::new(&peers.each_ref().map(|peer| peer.name));
    for round in 0..options.rounds {
        eprintln!("{}: round {} of {}", weights.name(), round + 1, options.rounds);
        for measure in MEASURES.iter().filter(|measure| measure.name.contains(&options.only)) {
            let once = |peer: &Peer| (measure.take)(peer, round);
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
