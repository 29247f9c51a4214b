//! More than the server has room for: many clients at once, and clients that leave at any moment.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use spinfer_tests::client::Answer;
use spinfer_tests::reference::{Greedy, Reference};
use spinfer_tests::server::{Server, Setup};

const MODEL: &str = "smollm2-135m-instruct";

const PROMPTS: [&str; 6] = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n",
    "1, 1, 2, 3, 5, 8,",
    "The quick brown fox jumps over the lazy dog. The quick brown fox",
    "To make bread you need flour, water,",
];

const TOKENS: usize = 8;

fn greedy(prompt: &str, max_tokens: usize) -> Value {
    json!({"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0})
}

/// What llama.cpp itself says to the prompts, and how far batching moves its logits.
struct Expected {
    reference: &'static Reference,
    answers: Vec<Greedy>,
    moved: f32,
}

impl Expected {
    fn new() -> Self {
        let reference = Reference::default_model();
        let ids = PROMPTS.map(|prompt| reference.model.tokenize(prompt, true, true).unwrap());
        let moved = reference.what_batching_moves(&ids);
        let answers = PROMPTS.map(|prompt| reference.greedy(prompt, TOKENS)).into();
        Self { reference, answers, moved }
    }

    /// An answer is right, or differs where two tokens were nearly as likely.
    fn check(&self, prompt: usize, answer: &Answer) {
        let text = answer.completion();
        let margin = self.answers[prompt].margin_of_difference(self.reference, &text);
        let (margin, moved) = (margin.unwrap_or(0.0), self.moved);
        assert!(margin <= 2.0 * moved, "{text:?}: {margin} apart, and batching moves {moved}");
    }
}

/// What many clients have got.
#[derive(Default)]
struct Tally {
    answered: AtomicUsize,
    told_to_wait: AtomicUsize,
}

/// Until when a client asks: how many answers it has got, and since when all of them have been asking.
type Enough<'a> = &'a (dyn Fn(usize, Duration) -> bool + Sync);

/// Asks until it has enough, and comes back when it is told to.
fn insist(server: &Server, expected: &Expected, client: usize, tally: &Tally, enough: Enough<'_>) {
    let began = Instant::now();
    let mut answers = 0;
    let mut tries = 0;
    while !enough(answers, began.elapsed()) {
        let prompt = (client + tries) % PROMPTS.len();
        tries += 1;
        let answer = server.complete(&greedy(PROMPTS[prompt], TOKENS));
        match answer.status {
            200 => {
                expected.check(prompt, &answer);
                answers += 1;
                tally.answered.fetch_add(1, Ordering::Relaxed);
            }
            429 => {
                let wait = answer.header("retry-after").parse().expect("seconds");
                assert_eq!(answer.json()["error"]["type"], "rate_limit_error");
                tally.told_to_wait.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_secs(wait));
            }
            _ => panic!("neither 200 nor 429: {answer:?}"),
        }
    }
}

/// 200 clients at a server with room for 32 requests.
fn crowd(enough: Enough<'_>) {
    const CLIENTS: usize = 200;
    let expected = Expected::new();
    let server = Server::start(&Setup { nn: "requests_in_flight = 32".into(), ..Setup::default() });
    let single = || {
        let began = Instant::now();
        assert_eq!(server.complete(&greedy(PROMPTS[0], TOKENS)).status, 200);
        began.elapsed()
    };
    let quickest = || (0..10).map(|_| single()).min().expect("some");
    let crowd = |enough: Enough<'_>| {
        let tally = Tally::default();
        std::thread::scope(|scope| {
            for client in 0..CLIENTS {
                let (server, expected, tally) = (&server, &expected, &tally);
                scope.spawn(move || insist(server, expected, client, tally, enough));
            }
        });
        tally
    };
    // The pools and the allocator's arenas grow with the first few crowds, each time by less.
    for _ in 0..3 {
        crowd(&|answers, _| answers == 1);
    }
    let (time_before, memory_before) = (quickest(), server.memory().resident);
    let tally = crowd(enough);
    let (time_after, memory_after) = (quickest(), server.memory().resident);
    println!(
        "{:?} answers, {:?} times told to wait; a single request took {time_before:?} before and \
         {time_after:?} after; {} MiB before and {} after",
        tally.answered,
        tally.told_to_wait,
        memory_before >> 20,
        memory_after >> 20
    );
    assert!(tally.told_to_wait.into_inner() > 0, "there were more than the server had room for");
    assert_idle(&server);
    assert!(memory_after < memory_before + (32 << 20), "memory has grown");
}

#[test]
fn a_full_server_answers_or_tells_to_wait() {
    crowd(&|answers, _| answers == 1);
}

#[test]
#[ignore = "takes more than a minute"]
fn a_server_that_is_full_for_a_minute_answers_or_tells_to_wait() {
    crowd(&|_, since| since > Duration::from_secs(60));
}

/// Nothing is held, and nobody waits.
fn assert_idle(server: &Server) {
    server.wait_for_metric("spinfer_sequences_held", |held| held == 0);
    server.wait_for_metric("vllm:num_requests_running", |running| running == 0);
    server.wait_for_metric("vllm:num_requests_waiting", |waiting| waiting == 0);
    server.wait_for_metric("spinfer_requests_in_flight", |requests| requests == 0);
}

/// Numbers that look random, and are the same each time.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Comes at some moment, asks for something, and leaves: in the middle of its own request, or after it
/// has waited or read for a while.
fn leave_somewhere(server: &Server, client: u64) {
    let mut random = Random(client.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    std::thread::sleep(Duration::from_millis(random.below(4000)));
    let words = 1 + random.below(300) as usize;
    let mut body = greedy(&format!("{client} {}", "one two three ".repeat(words)), 64);
    body["stream"] = json!(random.below(2) == 0);
    body["n"] = json!(1 + random.below(3));
    body["temperature"] = json!(1);
    let body = body.to_string();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    let request = [head.as_bytes(), body.as_bytes()].concat();
    let mut stream = TcpStream::connect(&server.address).expect("the server listens");
    if random.below(8) == 0 {
        let part = random.below(request.len() as u64) as usize;
        stream.write_all(&request[..part]).expect("the server reads");
        return;
    }
    stream.write_all(&request).expect("the server reads");
    let patience = Duration::from_millis(1 + random.below(3000));
    stream.set_read_timeout(Some(patience)).expect("a timeout");
    let mut left = random.below(4096) as usize;
    let mut buffer = [0; 1024];
    while left > 0 {
        match stream.read(&mut buffer[..left.min(1024)]) {
            Ok(0) | Err(_) => return,
            Ok(read) => left -= read,
        }
    }
}

/// 500 clients that leave; how many cells are used afterwards.
fn leavers(nn: &str) -> u64 {
    let server = Server::start(&Setup { nn: nn.into(), ..Setup::default() });
    let crowd = |clients: std::ops::Range<u64>| {
        std::thread::scope(|scope| {
            for client in clients {
                let server = &server;
                scope.spawn(move || leave_somewhere(server, client));
            }
        });
        assert_idle(&server);
    };
    // What a crowd needs once is there after the first: cells that were never touched before, and the
    // memories of as many instances as there were at a time.
    crowd(0..500);
    let before = server.memory().resident;
    crowd(500..1000);
    let after = server.memory().resident;
    println!("{} MiB before, {} after", before >> 20, after >> 20);
    assert!(after < before + (32 << 20), "memory has grown");
    assert_eq!(server.complete(&greedy(PROMPTS[0], 4)).status, 200, "the server goes on");
    assert_idle(&server);
    let cells = server.metric("spinfer_cells_used");
    let (status, log) = server.stop();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(!log.contains("ERROR") && !log.contains("panicked"), "{log}");
    cells
}

#[test]
fn clients_that_leave_at_any_moment_leave_nothing_behind() {
    assert_eq!(leavers("prefix_cache = false"), 0, "cells that nobody has");
}

#[test]
fn clients_that_leave_at_any_moment_leave_only_the_prefix_cache_behind() {
    // Four sequences, of which each holds no more than its last request has put there.
    let cells = leavers("sequences = 4\nmax_rows = 3\ncontext = 1024");
    assert!((1..=4 * 1024).contains(&cells), "{cells} cells");
}
