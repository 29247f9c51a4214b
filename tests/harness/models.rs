//! The models that tests use.

use std::path::{Path, PathBuf};

/// The folder with `<id>/model.gguf` for each: `SPINFER_TEST_MODELS`, or `models` in the workspace.
pub fn folder() -> PathBuf {
    match std::env::var_os("SPINFER_TEST_MODELS") {
        Some(folder) => folder.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../models"),
    }
}

/// The weights of a model.
///
/// # Panics
/// When they aren't there.
pub fn weights(id: &str) -> PathBuf {
    let path = folder().join(id).join("model.gguf");
    assert!(
        path.is_file(),
        "{} isn't there: `cargo xtask test` fetches the models that tests use",
        path.display()
    );
    path
}
