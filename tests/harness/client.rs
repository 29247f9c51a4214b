//! A plain HTTP client for the server.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use ureq::Agent;
use ureq::Body;
use ureq::http::Response;

use crate::server::Server;

/// An answer that was read whole.
#[derive(Debug, Clone)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// The headers, names in lower case.
    pub headers: ureq::http::HeaderMap,
    /// The body as it came.
    pub text: String,
}

impl Answer {
    /// The body as JSON.
    ///
    /// # Panics
    /// When it is none.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text)
            .unwrap_or_else(|error| panic!("{error} in the body {:?}", self.text))
    }

    /// A header's value, or nothing.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("")
    }

    /// The text of choice 0.
    pub fn completion(&self) -> String {
        assert_eq!(self.status, 200, "{}", self.text);
        self.json()["choices"][0]["text"].as_str().expect("a text").to_owned()
    }
}

/// A key that no other call has.
fn new_caller() -> String {
    static CALLERS: AtomicU64 = AtomicU64::new(0);
    format!("caller {}", CALLERS.fetch_add(1, Ordering::Relaxed))
}

fn agent() -> Agent {
    Agent::config_builder().http_status_as_error(false).build().into()
}

fn read(response: Response<Body>) -> Answer {
    let (parts, mut body) = response.into_parts();
    Answer {
        status: parts.status.as_u16(),
        headers: parts.headers,
        text: body.read_to_string().expect("a body of text"),
    }
}

impl Server {
    /// `GET path`.
    pub fn get(&self, path: &str) -> Answer {
        read(agent().get(format!("{}{path}", self.url)).call().expect("an answer"))
    }

    /// `GET path` with a header.
    pub fn get_with(&self, path: &str, name: &str, value: &str) -> Answer {
        let request = agent().get(format!("{}{path}", self.url)).header(name, value);
        read(request.call().expect("an answer"))
    }

    /// `GET path` as soon as the server listens.
    ///
    /// # Panics
    /// When it does not within a minute.
    pub fn get_when_listening(&self, path: &str) -> Answer {
        let until = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(&self.address).is_err() {
            assert!(Instant::now() < until, "nobody listens:\n{}", self.output());
            std::thread::yield_now();
        }
        self.get(path)
    }

    /// `POST path` of any body.
    pub fn post(&self, path: &str, content_type: &str, body: &[u8]) -> Answer {
        let request =
            agent().post(format!("{}{path}", self.url)).header("content-type", content_type);
        read(request.send(body).expect("an answer"))
    }

    /// Any method without a body.
    pub fn request(&self, method: &str, path: &str) -> Answer {
        let request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url))
            .body(())
            .expect("a request");
        read(agent().run(request).expect("an answer"))
    }

    /// `POST /v1/completions` of a JSON body, by a caller that nobody was before: so that no answer
    /// depends on what the prefix cache has.
    pub fn complete(&self, body: &Value) -> Answer {
        self.complete_as(&new_caller(), body)
    }

    /// The same by a given caller.
    pub fn complete_as(&self, key: &str, body: &Value) -> Answer {
        let request = agent()
            .post(format!("{}/v1/completions", self.url))
            .header("content-type", "application/json")
            .header("authorization", format!("Bearer {key}"));
        read(request.send(body.to_string().as_bytes()).expect("an answer"))
    }

    /// The same with `"stream": true`: the data of the events one by one, as they come, until the
    /// stream's end. `[DONE]` is the last.
    pub fn stream(&self, body: &Value) -> impl Iterator<Item = String> + use<> {
        let mut body = body.clone();
        body["stream"] = Value::Bool(true);
        let response = agent()
            .post(format!("{}/v1/completions", self.url))
            .header("content-type", "application/json")
            .header("authorization", format!("Bearer {}", new_caller()))
            .send(body.to_string().as_bytes())
            .expect("an answer");
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let lines = BufReader::new(response.into_body().into_reader()).lines();
        lines.map_while(Result::ok).filter_map(|line| {
            if line.is_empty() || line.starts_with(':') {
                return None;
            }
            let data = line.strip_prefix("data: ");
            Some(data.unwrap_or_else(|| panic!("not an event: {line:?}")).to_owned())
        })
    }

    /// The chunks of a stream, parsed, which must end with `[DONE]`.
    pub fn chunks(&self, body: &Value) -> Vec<Value> {
        let mut events: Vec<String> = self.stream(body).collect();
        assert_eq!(events.pop().as_deref(), Some("[DONE]"));
        events
            .iter()
            .map(|event| {
                serde_json::from_str(event).unwrap_or_else(|_| panic!("not JSON: {event}"))
            })
            .collect()
    }
}

/// The text of choice 0 that a stream's chunks make up.
pub fn joined(chunks: &[Value]) -> String {
    chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect()
}

/// The choices that a stream's chunks make up, in their order: texts and lists are joined, and of
/// other values the last that isn't null counts.
pub fn join_choices(chunks: &[Value]) -> Vec<Value> {
    let mut joined = Vec::new();
    for choice in chunks.iter().filter_map(|chunk| chunk["choices"].get(0)) {
        let index = choice["index"].as_u64().expect("an index") as usize;
        joined.resize(joined.len().max(index + 1), Value::Null);
        join(&mut joined[index], choice.clone());
        joined[index]["index"] = index.into();
    }
    joined
}

fn join(into: &mut Value, more: Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (name, value) in more {
                join(into.entry(name).or_insert(Value::Null), value);
            }
        }
        (Value::Array(into), Value::Array(more)) => into.extend(more),
        (Value::String(into), Value::String(more)) => into.push_str(&more),
        (_, Value::Null) => {}
        (into, more) => *into = more,
    }
}
