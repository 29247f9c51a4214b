//! What the probes try for the tests, by the path below their route; the query says with what.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::ErrorKind;
use std::net::TcpStream;
use std::path::Path;
use std::{env, fs};

use serde_json::{Value, json};

/// What a task brings: an HTTP status, and what the answer says.
pub type Outcome = (u16, Value);

/// A task that fails is a 500 that says why.
pub fn outcome<E: Display>(result: Result<impl Into<Value>, E>) -> Outcome {
    match result {
        Ok(value) => (200, value.into()),
        Err(error) => (500, Value::String(error.to_string())),
    }
}

/// Runs a task that needs nothing but the standard library; none if there is no such.
pub fn run(task: &str, query: &str) -> Option<Outcome> {
    Some(match task {
        "/read" => outcome(fs::read_to_string(query)),
        "/write" => outcome(fs::write(query, "written").map(|()| "written")),
        "/connect" => outcome(TcpStream::connect(query).map(|_| "connected")),
        _ => return None,
    })
}

/// What an instance sees: its environment, the files below `/`, and the headers by which it knows its
/// route.
pub fn look<'a>(headers: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Value {
    let mut files = BTreeMap::new();
    walk(Path::new("/"), &mut files);
    let of_spin = headers.into_iter().filter(|(name, _)| name.starts_with("spin-"));
    json!({
        "environment": env::vars().collect::<BTreeMap<_, _>>(),
        "files": files,
        "headers": of_spin
            .map(|(name, value)| (name.to_owned(), String::from_utf8_lossy(value).into_owned()))
            .collect::<BTreeMap<_, _>>(),
    })
}

fn walk(folder: &Path, files: &mut BTreeMap<String, String>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        match fs::read_to_string(&path) {
            Ok(text) => drop(files.insert(path.display().to_string(), text)),
            Err(error) if error.kind() == ErrorKind::IsADirectory => walk(&path, files),
            Err(_) if path.is_dir() => walk(&path, files),
            Err(error) => drop(files.insert(path.display().to_string(), error.to_string())),
        }
    }
}
