//! A component of WASI 0.3 that tells the tests what a snapshotted instance can still do: before the
//! snapshot it has used files, the environment and random numbers, and afterwards it must see its own. At
//! some paths it does what an instance must not.

#![cfg(target_family = "wasm")]

mod tasks;

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::OnceLock;

use serde_json::{Value, json};
use spin_sdk::http::{EmptyBody, FullBody, Request, Response};
use spin_sdk::http_service;
use tasks::{Outcome, outcome};

/// What the instance of which the snapshot was taken saw.
static SEEN_BEFORE: OnceLock<Value> = OnceLock::new();

fn look() -> Value {
    let mut models: Vec<String> = std::fs::read_dir("/models")
        .map(|entries| {
            entries
                .flatten()
                .map(|entry| entry.file_name().to_string_lossy().into_owned())
                .collect()
        })
        .unwrap_or_default();
    models.sort();
    json!({
        "models": models,
        "environment": std::env::vars().collect::<std::collections::BTreeMap<_, _>>(),
        "time": std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs()),
    })
}

#[http_service]
async fn answer(request: Request) -> Response<FullBody<bytes::Bytes>> {
    let (status, answer) = carry_out(&request).await;
    let mut response = Response::new(FullBody::new(answer.to_string().into()));
    *response.status_mut() = status.try_into().unwrap();
    response
}

async fn carry_out(request: &Request) -> Outcome {
    let headers = request.headers();
    let task = headers.get("spin-path-info").and_then(|path| path.to_str().ok()).unwrap_or("");
    let query = request.uri().query().unwrap_or("");
    match task {
        "/runs-forever" => loop {
            std::hint::black_box(());
        },
        "/takes-all-memory" => {
            let mut taken = Vec::new();
            loop {
                taken.push(std::hint::black_box(vec![1_u8; 1 << 20]));
            }
        }
        "/fetch" => {
            let request = Request::get(query).body(EmptyBody::new()).unwrap();
            let answer = spin_sdk::http::send(request).await;
            outcome(answer.map(|answer| answer.status().as_u16()))
        }
        "/model" => outcome(wasi_nn::Graph::by_name(query).map(|_| "loaded")),
        "/variable" => outcome(spin_sdk::variables::get(query).await),
        "/look" => {
            let headers = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
            let mut seen = tasks::look(headers);
            seen["variable"] = spin_sdk::variables::get("canary").await.ok().into();
            (200, seen)
        }
        _ => match tasks::run(task, query) {
            Some(outcome) => outcome,
            None => about_the_snapshot().await,
        },
    }
}

async fn about_the_snapshot() -> Outcome {
    eprintln!("the probe logs");
    let seen = json!({
        "before": SEEN_BEFORE.get(),
        "now": look(),
        "random": spin_sdk::wasip3::random::random::get_random_u64(),
        "hash": RandomState::new().hash_one(0),
        "variable": spin_sdk::variables::get("canary").await.ok(),
    });
    (200, seen)
}

mod bindings {
    spin_sdk::wit_bindgen::generate!({
        path: "../../wit/init.wit",
        world: "init",
        runtime_path: "::spin_sdk::wit_bindgen::rt",
    });

    struct Component;
    export!(Component);

    impl Guest for Component {
        fn wizer_initialize() {
            let seen = super::look();
            let _ = super::SEEN_BEFORE.set(seen);
            spinfer_preinit::forget_handles();
        }
    }
}
