//! Load for benchmarks: requests, and when their tokens come.

use std::io::{BufRead, BufReader};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use ureq::Agent;

/// A client with a connection for each request: llama-server closes those that are kept after a while.
#[derive(Clone)]
pub struct Client {
    agent: Agent,
    url: String,
    model: String,
}

/// When the events of one stream came that have text: those of all its tokens but control tokens and
/// parts of characters.
pub struct Stream {
    began: Instant,
    events: Vec<Instant>,
    /// How many tokens were generated.
    tokens: usize,
}

impl Stream {
    /// From the request to the first token.
    pub fn first(&self) -> Duration {
        self.events[0] - self.began
    }

    /// Tokens a second, after the first.
    pub fn rate(&self) -> f64 {
        let (first, last) = self.span();
        (self.tokens - 1) as f64 / (last - first).as_secs_f64()
    }

    /// Between each two events.
    pub fn gaps(&self) -> impl Iterator<Item = Duration> + '_ {
        self.events.windows(2).map(|pair| pair[1] - pair[0])
    }

    /// When the request was sent.
    pub fn began(&self) -> Instant {
        self.began
    }

    /// When the first token came, and the last.
    pub fn span(&self) -> (Instant, Instant) {
        (self.events[0], *self.events.last().expect("an event"))
    }
}

impl Client {
    /// A client of the default model of the server at that address.
    pub fn new(url: &str) -> Self {
        Self::of(url, "smollm2-135m-instruct")
    }

    /// A client of that model.
    pub fn of(url: &str, model: &str) -> Self {
        let agent = Agent::config_builder().max_idle_connections(0).build().into();
        Self { agent, url: format!("{url}/v1/completions"), model: model.to_owned() }
    }

    fn body(&self, prompt: &str, max_tokens: usize, fields: &Value) -> Value {
        let mut body = json!({
            "model": self.model, "prompt": prompt, "max_tokens": max_tokens,
            "temperature": 0, "ignore_eos": true,
        });
        if let (Some(body), Some(fields)) = (body.as_object_mut(), fields.as_object()) {
            body.extend(fields.clone());
        }
        body
    }

    /// A whole answer.
    pub fn complete(&self, prompt: &str, max_tokens: usize) -> Value {
        let body = self.body(prompt, max_tokens, &json!({}));
        let mut response = self
            .agent
            .post(&self.url)
            .header("content-type", "application/json")
            .send(body.to_string().as_bytes())
            .expect("an answer");
        let text = response.body_mut().read_to_string().expect("text");
        serde_json::from_str(&text).expect("JSON")
    }

    /// A streamed answer, read to its end.
    pub fn stream(&self, prompt: &str, max_tokens: usize, fields: &Value) -> Stream {
        let mut body = self.body(prompt, max_tokens, fields);
        body["stream"] = true.into();
        let body = body.to_string();
        let began = Instant::now();
        let response = self
            .agent
            .post(&self.url)
            .header("content-type", "application/json")
            .send(body.as_bytes())
            .expect("an answer");
        let (mut events, mut whole) = (Vec::with_capacity(max_tokens), false);
        for line in BufReader::new(response.into_body().into_reader()).lines() {
            let line = line.expect("a line");
            if line.starts_with("data: {") && !line.contains("\"text\":\"\"") {
                events.push(Instant::now());
            }
            whole |= line.contains("\"finish_reason\":\"length\"");
        }
        assert!(whole && !events.is_empty(), "a stream that ended before {max_tokens} tokens");
        Stream { began, events, tokens: max_tokens }
    }

    /// Streams at the same time, each with a prompt of its own.
    pub fn streams(&self, prompts: &[String], max_tokens: usize, fields: &Value) -> Vec<Stream> {
        std::thread::scope(|scope| {
            let threads = prompts
                .iter()
                .map(|prompt| scope.spawn(|| self.stream(prompt, max_tokens, fields)))
                .collect::<Vec<_>>();
            threads.into_iter().map(|thread| thread.join().expect("a stream")).collect()
        })
    }
}

/// Tokens a second of streams that ran together, from the first request to the last token: prompts are
/// computed in it, too.
///
/// # Panics
/// When there are none.
pub fn throughput(streams: &[Stream]) -> f64 {
    let tokens: usize = streams.iter().map(|stream| stream.tokens).sum();
    let begin = streams.iter().map(Stream::began).min().expect("a stream");
    let end = streams.iter().map(|stream| stream.span().1).max().expect("a stream");
    tokens as f64 / (end - begin).as_secs_f64()
}

/// A duration in milliseconds.
pub fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Words that are one token each, so that a text of so many is a prompt of about as many tokens.
const WORDS: [&str; 48] = [
    "the", "of", "and", "to", "in", "is", "that", "for", "with", "as", "was", "on", "are", "by",
    "this", "from", "at", "which", "have", "not", "be", "or", "an", "it", "their", "has", "they",
    "more", "can", "one", "water", "people", "time", "school", "world", "life", "work", "city",
    "house", "history", "family", "children", "music", "food", "system", "energy", "light", "day",
];

/// Prompts that hardly begin alike: the same ones for the same series, so that each server is asked the
/// same.
pub struct Prompts {
    first: u64,
    seed: u64,
}

impl Prompts {
    /// A series of a hundred prompts. Of ninety series in a row, no two prompts are the same.
    pub fn new(series: u64) -> Self {
        Self { first: series * 100, seed: series * 100 }
    }

    /// A prompt of so many words.
    pub fn long(&mut self, words: usize) -> String {
        self.seed += 1;
        text(words, self.seed)
    }

    /// The prompt of so many words that is the series' own.
    pub fn same(&self, words: usize) -> String {
        text(words, self.first)
    }

    /// So many prompts of 22 tokens: two words, and numbers that count up. Models go on counting and come to
    /// no end, which each server would go past in its own way (`ignore_eos`).
    pub fn short(&mut self, count: usize) -> Vec<String> {
        (0..count)
            .map(|_| {
                self.seed += 1;
                let start = 1000 + self.seed * 7919 % 8993;
                let words = text(2, self.seed);
                format!("{words}{start} {} {} {}", start + 1, start + 2, start + 3)
            })
            .collect()
    }
}

/// A text of so many words, whose first ones hardly any other seed gives too.
fn text(words: usize, seed: u64) -> String {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut text = String::new();
    for _ in 0..words {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        text.push_str(WORDS[(state % WORDS.len() as u64) as usize]);
        text.push(' ');
    }
    text
}
