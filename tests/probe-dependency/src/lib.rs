//! A component that gives others their variables, of WASI 0.2 and 0.3, and tells in them what it sees and may do
//! itself: their names are the tasks of the probes, with their queries.

#![cfg(target_family = "wasm")]

#[path = "../../probe/src/tasks.rs"]
mod tasks;

use spin_sdk::http::{EmptyBody, Request};
use tasks::{Outcome, outcome};

struct Component;

fn split(name: &str) -> (&str, &str) {
    name.split_once('?').unwrap_or((name, ""))
}

fn carry_out(name: &str) -> Outcome {
    let (task, query) = split(name);
    tasks::run(task, query).unwrap_or_else(|| (200, tasks::look(std::iter::empty())))
}

fn told((status, answer): Outcome) -> Result<String, String> {
    match status {
        200 => Ok(answer.to_string()),
        _ => Err(answer.to_string()),
    }
}

mod former {
    spin_sdk::wit_bindgen::generate!({
        path: "../../wit/fermyon-spin-variables.wit",
        world: "exports",
        runtime_path: "::spin_sdk::wit_bindgen::rt",
    });

    use exports::fermyon::spin::variables::{Error, Guest};

    export!(Component with_types_in self);

    use super::{Component, carry_out, told};

    impl Guest for Component {
        fn get(name: String) -> Result<String, Error> {
            told(carry_out(&name)).map_err(Error::Other)
        }
    }
}

mod current {
    spin_sdk::wit_bindgen::generate!({
        path: "../../wit/spin-variables.wit",
        world: "exports",
        runtime_path: "::spin_sdk::wit_bindgen::rt",
    });

    use exports::spin::variables::variables::{Error, Guest};

    export!(Component with_types_in self);

    use super::{Component, carry_out, fetch, told};

    impl Guest for Component {
        async fn get(name: String) -> Result<String, Error> {
            let outcome = match name.strip_prefix("/fetch?") {
                Some(url) => fetch(url).await,
                None => carry_out(&name),
            };
            told(outcome).map_err(Error::Other)
        }
    }
}

async fn fetch(url: &str) -> Outcome {
    let request = Request::get(url).body(EmptyBody::new()).unwrap();
    let answer = spin_sdk::http::send(request).await;
    outcome(answer.map(|answer| answer.status().as_u16()))
}
