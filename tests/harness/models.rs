//! The models that tests use.

use std::fs;
use std::path::{Path, PathBuf};

use spinfer_gguf::Header;
use spinfer_gguf::write::Writer;

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

/// Writes a model's weights to `path`, with what `change` makes of its metadata.
///
/// # Panics
/// When the model isn't there, or can't be written.
pub fn rewritten(id: &str, path: &Path, change: impl FnOnce(Writer) -> Writer) {
    let source = weights(id);
    let header = Header::read(&source).expect("a header");
    let bytes = fs::read(&source).expect("weights");
    let metadata =
        header.metadata().fold(Writer::new(), |file, (key, value)| file.set(key, value.clone()));
    let file = header.tensors().iter().fold(change(metadata), |file, tensor| {
        let start = (header.data_offset() + tensor.offset) as usize;
        let data = bytes[start..start + tensor.bytes().expect("a size") as usize].to_vec();
        file.tensor(&tensor.name, &tensor.dimensions, tensor.kind, data)
    });
    fs::write(path, file.to_bytes()).expect("written");
}
