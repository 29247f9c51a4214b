//! Clients that people really use, from their packages, against the running server.

use std::path::{Path, PathBuf};
use std::process::Command;

use spinfer_tests::server::{Server, Setup};

/// The Python that has the clients' packages.
fn python() -> PathBuf {
    let python = std::env::var_os("SPINFER_TEST_PYTHON").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools/clients/bin/python"),
        PathBuf::from,
    );
    assert!(python.is_file(), "{} isn't there: `cargo xtask test` makes it", python.display());
    python
}

fn run(script: &str) {
    let server = Server::start(&Setup::default());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients");
    let output = Command::new(python())
        .arg(folder.join(script))
        .env("SPINFER_URL", &server.url)
        .output()
        .expect("Python runs");
    assert!(
        output.status.success(),
        "{}{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
        server.output()
    );
}

#[test]
fn openai_python() {
    run("openai_python.py");
}
