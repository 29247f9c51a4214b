//! The Wasm runtime's settings.

use std::time::Duration;

use wasmtime::{Config, Engine};

/// The largest memory image of a snapshot that is mapped copy-on-write even though it is sparse.
/// wasmtime's own limit is 16 MiB, less than one tokenizer; above it each instance would copy.
const DENSE_IMAGE_BYTES: u64 = 4 << 30;

/// How often a guest that computes gives way to other work on its thread.
const TICK: Duration = Duration::from_millis(10);

/// An engine for components, and the thread that counts its epochs.
pub fn new() -> wasmtime::Result<Engine> {
    let mut config = Config::new();
    config.wasm_component_model(true);
    config.wasm_component_model_async(true);
    config.memory_init_cow(true);
    config.memory_guaranteed_dense_image_size(DENSE_IMAGE_BYTES);
    config.epoch_interruption(true);
    let engine = Engine::new(&config)?;
    let weak = engine.weak();
    std::thread::Builder::new().name("epochs".into()).spawn(move || {
        while let Some(engine) = weak.upgrade() {
            engine.increment_epoch();
            drop(engine);
            std::thread::sleep(TICK);
        }
    })?;
    Ok(engine)
}
