//! A component of WASI 0.2, as older Spin SDKs make them, that tells the tests what it sees and what it may
//! do.

#![cfg(target_family = "wasm")]

#[path = "../../probe/src/tasks.rs"]
mod tasks;

use spin_sdk::http::{Request, Response};
use spin_sdk::http_component;
use tasks::{Outcome, outcome};

#[http_component]
async fn answer(request: Request) -> Response {
    let (status, answer) = carry_out(&request).await;
    Response::new(status, answer.to_string())
}

async fn carry_out(request: &Request) -> Outcome {
    let task = request.header("spin-path-info").and_then(|path| path.as_str()).unwrap_or("");
    let query = request.query();
    match task {
        "/fetch" => {
            let answer: Result<Response, _> = spin_sdk::http::send(Request::get(query)).await;
            outcome(answer.map(|answer| *answer.status()))
        }
        "/variable" => outcome(spin_sdk::variables::get(query)),
        _ => tasks::run(task, query).unwrap_or_else(|| {
            let headers = request.headers().map(|(name, value)| (name, value.as_bytes()));
            let mut seen = tasks::look(headers);
            seen["variable"] = spin_sdk::variables::get("canary").ok().into();
            (200, seen)
        }),
    }
}
