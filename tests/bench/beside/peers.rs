//! The servers.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use spinfer_tests::load::Client;
use spinfer_tests::models;
use spinfer_tests::process::Leashed;
use spinfer_tests::server::{Server, Setup};

/// Sequences at a time, and the tokens of each.
const SEQUENCES: u32 = 16;
const CONTEXT: u32 = 2048;

/// A server that is measured.
pub struct Peer {
    /// What the table calls it.
    pub name: &'static str,
    running: Running,
    client: Client,
    model: &'static str,
    start: Box<dyn Fn() -> Running>,
}

/// A server that runs until it is dropped.
enum Running {
    Spinfer(Server),
    LlamaServer(Leashed, String),
}

impl Running {
    fn url(&self) -> &str {
        match self {
            Self::Spinfer(server) => &server.url,
            Self::LlamaServer(_, url) => url,
        }
    }
}

impl Peer {
    fn new(name: &'static str, model: &'static str, start: impl Fn() -> Running + 'static) -> Self {
        let running = start();
        let client = Client::of(running.url(), model);
        // The first request of a server finds cold caches.
        client.complete("Once upon a time", 16);
        Self { name, running, client, model, start: Box::new(start) }
    }

    /// A client of it.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Its resident memory in bytes.
    pub fn memory(&self) -> u64 {
        match &self.running {
            Running::Spinfer(server) => server.memory().resident,
            Running::LlamaServer(process, _) => process.memory().resident,
        }
    }

    /// From the start of another of its kind to that one's first answer.
    pub fn start_another(&self) -> Duration {
        let began = Instant::now();
        let running = (self.start)();
        Client::of(running.url(), self.model).complete("Once upon a time", 1);
        began.elapsed()
    }
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

const MODEL: &str = "smollm2-135m-instruct";

/// Ours, with that file as the default model.
pub fn start_spinfer(name: &'static str, weights: &Path, nn: &str) -> Peer {
    let folder = weights.parent().and_then(Path::parent).expect("models/<id>/model.gguf");
    start_ours(name, MODEL, folder, nn)
}

/// Ours, with the default model that was converted for OpenVINO.
pub fn start_openvino(nn: &str) -> Peer {
    start_ours("OpenVINO", "smollm2-135m-instruct-openvino", &models::folder(), nn)
}

fn start_ours(name: &'static str, model: &'static str, folder: &Path, nn: &str) -> Peer {
    let setup = Setup {
        ai_models: vec![model.into()],
        models: folder.to_owned(),
        nn: format!("context = {CONTEXT}\nsequences = {SEQUENCES}\n{nn}"),
        // As it runs by default.
        environment: vec![("RUST_LOG".into(), "info".into())],
        ..Setup::default()
    };
    Peer::new(name, model, move || Running::Spinfer(Server::start(&setup)))
}

/// llama.cpp's, with its own defaults but for what makes the two comparable.
pub fn start_llama_server(weights: &Path) -> Peer {
    let program = std::env::var_os("SPINFER_LLAMA_SERVER").expect(
        "SPINFER_LLAMA_SERVER names llama-server; `cargo xtask bench llama_server` builds it",
    );
    let weights = weights.to_owned();
    Peer::new("llama-server", MODEL, move || {
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = free.local_addr().expect("an address").port();
        drop(free);
        let mut command = Command::new(&program);
        command.arg("--model").arg(&weights).args(["--host", "127.0.0.1", "--no-ui"]);
        for (name, value) in [
            ("--port", port.to_string()),
            ("--ctx-size", (CONTEXT * SEQUENCES).to_string()),
            ("--parallel", SEQUENCES.to_string()),
            ("--threads", threads().to_string()),
            ("--threads-batch", threads().to_string()),
        ] {
            command.args([name, &value]);
        }
        let process = Leashed::start(&command);
        let ready = process.wait(Duration::from_secs(120), |output| {
            output.contains(": listening on http").then_some(())
        });
        ready.unwrap_or_else(|output| panic!("llama-server did not start:\n{output}"));
        Running::LlamaServer(process, format!("http://127.0.0.1:{port}"))
    })
}
