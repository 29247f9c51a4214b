//! The server with llama.cpp beside another: llama.cpp's own `llama-server`, or itself with OpenVINO. The same
//! threads, context and prompts, in turn, in one run. Prints a table of both and of their ratios.
//!
//! `cargo xtask bench llama_server` and `cargo xtask bench openvino` build what they need. By hand, with
//! `SPINFER_LLAMA_SERVER` naming the program:
//! `cargo bench -p spinfer-tests --bench beside -- llama-server --rounds 7 --weights q4_1`.

mod bandwidth;
mod measures;
mod peers;
mod table;

use std::thread;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use spinfer_tests::load::Prompts;
use spinfer_tests::measure::{Rounds, median};
use spinfer_tests::models::Weights;

use measures::MEASURES;
use peers::{start_llama_server, start_openvino, start_spinfer};
use table::Table;

/// Measures the server with llama.cpp beside another.
#[derive(Parser)]
struct Options {
    /// Beside which
    peer: OtherPeer,

    #[command(flatten)]
    rounds: Rounds,

    /// Only what has this in its name
    #[arg(long, default_value = "")]
    only: String,

    /// More lines of [nn] for our server
    #[arg(long, default_value = "")]
    nn: String,
}

/// What the server is measured beside.
#[derive(Clone, Copy, ValueEnum)]
enum OtherPeer {
    /// llama.cpp's own server, with the same weights
    LlamaServer,
    /// The server with OpenVINO, whose weights are those of the Q4_1 file
    Openvino,
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

/// After this, the threads of whoever was measured before look for no more work.
const SETTLE: Duration = Duration::from_millis(50);

/// One kind of weights: all measures, in rounds.
fn compare(weights: Weights, options: &Options, bandwidth: f64) {
    let file = weights.file();
    let peers = match options.peer {
        OtherPeer::LlamaServer => {
            [start_spinfer("spinfer", &file, &options.nn), start_llama_server(&file)]
        }
        OtherPeer::Openvino => {
            [start_spinfer("llama.cpp", &file, &options.nn), start_openvino(&options.nn)]
        }
    };
    let mut table = Table::new(&peers.each_ref().map(|peer| peer.name));
    let rounds = options.rounds.rounds;
    for round in 0..rounds {
        eprintln!("{}: round {} of {}", weights.name(), round + 1, rounds);
        let measures = MEASURES.iter().enumerate();
        for (number, measure) in measures.filter(|(_, m)| m.name.contains(&options.only)) {
            let series = (number * rounds + round) as u64;
            let mut prompts = [Prompts::new(series), Prompts::new(series)];
            let mut found = [Vec::new(), Vec::new()];
            for time in 0..measure.times {
                // Whoever is first has a cooler machine: they take turns.
                let first = (round + time) % 2;
                for peer in [first, 1 - first] {
                    thread::sleep(SETTLE);
                    found[peer].push((measure.take)(&peers[peer], &mut prompts[peer]));
                }
            }
            for (at, column) in measure.columns.iter().enumerate() {
                let of = |found: &Vec<Vec<f64>>| {
                    median(&found.iter().map(|values| values[at]).collect::<Vec<_>>())
                };
                table.add(column, of(&found[0]), of(&found[1]));
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
