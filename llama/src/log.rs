//! llama.cpp's log, to `tracing`; and the reason of a failed load, which it tells only there.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_void};

use llama_cpp_sys_2 as sys;

thread_local! {
    /// What was logged as an error on this thread since [`capture`] began, if it is running.
    static CAPTURED: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
    /// The level of the line that is being continued.
    static LEVEL: RefCell<sys::ggml_log_level> = const { RefCell::new(sys::GGML_LOG_LEVEL_DEBUG) };
}

/// Routes the library's log to `tracing` under the target `llama`.
pub fn install() {
    // SAFETY: the callback is a plain function that never unwinds and lives forever.
    unsafe { sys::llama_log_set(Some(on_log), std::ptr::null_mut()) };
}

/// Runs `f` and returns, beside its result, the lines that the library logged as errors meanwhile on
/// this thread.
pub fn capture<T>(f: impl FnOnce() -> T) -> (T, Vec<String>) {
    CAPTURED.with_borrow_mut(|captured| *captured = Some(Vec::new()));
    let result = f();
    let lines = CAPTURED.with_borrow_mut(|captured| captured.take().unwrap_or_default());
    (result, lines)
}

unsafe extern "C" fn on_log(level: sys::ggml_log_level, text: *const c_char, _: *mut c_void) {
    if text.is_null() {
        return;
    }
    // SAFETY: the library passes a NUL-terminated string that is valid during the call.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let line = text.trim_end();
    if line.is_empty() || line.chars().all(|c| c == '.') {
        return;
    }
    let level = if level == sys::GGML_LOG_LEVEL_CONT {
        LEVEL.with_borrow(|level| *level)
    } else {
        LEVEL.with_borrow_mut(|last| *last = level);
        level
    };
    match level {
        sys::GGML_LOG_LEVEL_ERROR => {
            CAPTURED.with_borrow_mut(|captured| {
                if let Some(lines) = captured {
                    lines.push(line.to_owned());
                }
            });
            // A failed load is reported by its caller; the library's own words are for those who dig.
            tracing::info!(target: "llama", "{line}");
        }
        sys::GGML_LOG_LEVEL_WARN => tracing::info!(target: "llama", "{line}"),
        _ => tracing::debug!(target: "llama", "{line}"),
    }
}
