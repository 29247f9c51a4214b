//! What llama.cpp itself makes of this machine, in this process: decode and prefill by threads, layout of
//! the KV cache and size of the chunks. The defaults of `[nn]` come from it.
//!
//! `cargo xtask bench engine`, or by hand `cargo bench -p spinfer-tests --bench engine -- --rounds 5`.

use std::sync::Arc;
use std::time::Instant;

use clap::Parser;
use spinfer_llama::{Batch, Context, ContextParams, KvType, Model, ModelParams, Token};
use spinfer_tests::measure::{Rounds, median};

const SEQUENCES: u32 = 16;
const CONTEXT: u32 = 2048;

/// Measures llama.cpp without a server.
#[derive(Parser)]
struct Options {
    #[command(flatten)]
    rounds: Rounds,
}

/// One way to run the model.
#[derive(Clone, Copy)]
struct Way {
    threads: u32,
    unified: bool,
    micro_batch: u32,
}

impl Way {
    fn context(self, model: &Arc<Model>) -> Context {
        let params = ContextParams {
            cells: CONTEXT * SEQUENCES,
            sequences: SEQUENCES,
            batch: 2048,
            micro_batch: self.micro_batch,
            outputs: SEQUENCES,
            unified: self.unified,
            threads: self.threads,
            kv_type: KvType::F16,
        };
        Context::new(model.clone(), &params).expect("a context")
    }
}

fn main() {
    let Options { rounds: Rounds { rounds, weights, .. } } = Options::parse();
    for weights in weights {
        let model = Model::load(&weights.file(), &ModelParams::default()).expect("the model");
        let model = Arc::new(model);
        println!("\n### {}", weights.name());
        decode_table(&model, rounds);
        chunk_table(&model, rounds);
    }
}

fn ways() -> Vec<Way> {
    let most = std::thread::available_parallelism().map_or(1, usize::from) as u32;
    let mut threads = vec![most];
    threads.extend((most > 1).then_some(most / 2));
    threads
        .iter()
        .flat_map(|&threads| {
            [false, true].map(|unified| Way { threads, unified, micro_batch: 512 })
        })
        .collect()
}

fn decode_table(model: &Arc<Model>, rounds: usize) {
    const STREAMS: [usize; 4] = [1, 4, 8, 16];
    println!("\nDecode, tok/s in all, by the number of streams:\n");
    println!("| threads | KV cache | 1 | 4 | 8 | 16 |\n|---|---|---|---|---|---|");
    let ways = ways();
    let mut contexts: Vec<Context> = ways.iter().map(|way| way.context(model)).collect();
    let mut found = vec![vec![Vec::new(); STREAMS.len()]; ways.len()];
    for _ in 0..rounds {
        for (column, streams) in STREAMS.into_iter().enumerate() {
            for (context, found) in contexts.iter_mut().zip(&mut found) {
                found[column].push(decode(context, streams));
            }
        }
    }
    for (way, found) in ways.iter().zip(found) {
        let layout = if way.unified { "one pool" } else { "a share each" };
        let cells: Vec<_> =
            found.into_iter().map(|values| format!("{:.0}", median(&values))).collect();
        println!("| {} | {layout} | {} |", way.threads, cells.join(" | "));
    }
}

/// Tokens a second of so many sequences that go on together.
fn decode(context: &mut Context, streams: usize) -> f64 {
    const STEPS: u32 = 48;
    let mut batch = Batch::new();
    for sequence in 0..SEQUENCES as i32 {
        context.remove(sequence);
    }
    for sequence in 0..streams as i32 {
        for (position, token) in prompt(16, sequence as u32).into_iter().enumerate() {
            batch.push(token, position as u32, sequence, position == 15);
        }
    }
    context.decode(&batch).expect("decodes");
    let began = Instant::now();
    for step in 0..STEPS {
        batch.clear();
        for sequence in 0..streams as i32 {
            batch.push(1000 + step as Token, 16 + step, sequence, true);
        }
        context.decode(&batch).expect("decodes");
        // Until somebody reads, nothing is known to be done.
        assert!(context.logits(0).is_some());
    }
    f64::from(STEPS) * streams as f64 / began.elapsed().as_secs_f64()
}

fn chunk_table(model: &Arc<Model>, rounds: usize) {
    const CHUNKS: [usize; 7] = [16, 32, 64, 128, 256, 512, 1024];
    println!("\nPrefill of 1,024 tokens in chunks of so many, and what a chunk takes:\n");
    println!("| tokens of a chunk | tok/s | ms a chunk |\n|---|---|---|");
    let threads = std::thread::available_parallelism().map_or(1, usize::from) as u32;
    let way = Way { threads, unified: false, micro_batch: 1024 };
    let mut context = way.context(model);
    let mut found = vec![Vec::new(); CHUNKS.len()];
    for _ in 0..rounds {
        for (chunk, found) in CHUNKS.into_iter().zip(&mut found) {
            found.push(prefill(&mut context, chunk));
        }
    }
    for (chunk, values) in CHUNKS.into_iter().zip(found) {
        let rate = median(&values);
        println!("| {chunk} | {rate:.0} | {:.1} |", chunk as f64 / rate * 1e3);
    }
}

fn prefill(context: &mut Context, chunk: usize) -> f64 {
    context.remove(0);
    let tokens = prompt(1024, 7);
    let began = Instant::now();
    let mut batch = Batch::new();
    for (index, tokens) in tokens.chunks(chunk).enumerate() {
        batch.clear();
        for (at, token) in tokens.iter().enumerate() {
            batch.push(*token, (index * chunk + at) as u32, 0, at + 1 == tokens.len());
        }
        context.decode(&batch).expect("decodes");
        assert!(context.logits(tokens.len() - 1).is_some());
    }
    tokens.len() as f64 / began.elapsed().as_secs_f64()
}

/// Some tokens, others for each seed.
fn prompt(length: usize, seed: u32) -> Vec<Token> {
    (0..length as u32).map(|at| (1000 + (at * 7919 + seed * 104_729) % 40_000) as Token).collect()
}
