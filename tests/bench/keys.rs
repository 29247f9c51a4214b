//! How long a wrong key takes to be refused, by how much of it is right: it must make no difference.

use std::time::Instant;

use spinfer_tests::measure::{median, quantile};
use spinfer_tests::server::{Server, Setup};

const KEY: &str = "sk-0123456789abcdef0123456789abcdef0123456789abcdef";

/// Requests of each kind, in turn.
const ROUNDS: usize = 3000;

fn main() {
    let setup = Setup {
        arguments: vec!["--variable".into(), format!("api_keys={KEY}")],
        environment: vec![("RUST_LOG".into(), "error".into())],
        ..Setup::default()
    };
    let server = Server::start(&setup);
    let wrong: Vec<(String, String)> = [0, 1, KEY.len() / 2, KEY.len() - 1]
        .into_iter()
        .map(|right| {
            let rest: String =
                KEY[right..].chars().map(|c| if c == 'x' { 'y' } else { 'x' }).collect();
            (
                format!("the first {right} of {} characters", KEY.len()),
                KEY[..right].to_owned() + &rest,
            )
        })
        .collect();
    let mut times = vec![Vec::new(); wrong.len()];
    for _ in 0..ROUNDS {
        for ((_, key), times) in wrong.iter().zip(&mut times) {
            let began = Instant::now();
            let answer = server.get_with("/v1/models", "authorization", &format!("Bearer {key}"));
            times.push(began.elapsed().as_secs_f64() * 1e6);
            assert_eq!(answer.status, 401);
        }
    }
    let none = median(&times[0]);
    println!("| right of the key | median, µs | 5th to 95th percentile | beside none |");
    println!("|---|---|---|---|");
    for ((name, _), times) in wrong.iter().zip(&times) {
        let (low, high) = (quantile(times, 0.05), quantile(times, 0.95));
        let middle = median(times);
        println!("| {name} | {middle:.1} | {low:.1} to {high:.1} | {:.3} |", middle / none);
    }
}
