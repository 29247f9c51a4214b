//! What a component must do at the end of its `wizer-initialize`, before the host takes its snapshot.

/// Makes wasi-libc forget what it remembers of this instance: the handles of mounted folders, and the
/// environment. Later instances start from this one's memory but have other handles and another
/// environment, so they must ask again.
#[cfg(target_family = "wasm")]
pub fn forget_handles() {
    // SAFETY: wasi-libc's own functions, with the signatures of its headers (`wasi/libc.h` and
    // `wasi/libc-environ.h`); they may be called at any time while no other thread runs.
    unsafe extern "C" {
        safe fn __wasilibc_reset_preopens();
        safe fn __wasilibc_deinitialize_environ();
    }
    __wasilibc_reset_preopens();
    __wasilibc_deinitialize_environ();
}
