//! The step that the host runs once, before it takes the snapshot that all instances start from.
//!
//! What is in memory here is in every instance: nothing of the environment, no variable, nothing
//! random may be kept. It reads the models and nothing else, and it doesn't print.

use super::library;

mod bindings {
    spin_sdk::wit_bindgen::generate!({
        path: "wit/init.wit",
        world: "init",
        runtime_path: "::spin_sdk::wit_bindgen::rt",
    });

    struct Component;
    export!(Component);

    impl Guest for Component {
        fn wizer_initialize() {
            super::initialize();
        }
    }
}

fn initialize() {
    library().warm_up();
    spinfer_preinit::forget_handles();
}
