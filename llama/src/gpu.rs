//! The GPUs that llama.cpp can compute on here.

use std::ffi::{CStr, c_char};

use llama_cpp_sys_2 as sys;

use crate::Backend;

/// The GPU backends that were compiled in, by the names of this package's features.
pub const GPU_BACKENDS: &[&str] = &[
    #[cfg(feature = "cuda")]
    "cuda",
    #[cfg(feature = "vulkan")]
    "vulkan",
    #[cfg(feature = "metal")]
    "metal",
];

/// A GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// llama.cpp's name for it: `CUDA0`, `Vulkan0`.
    pub name: String,
    /// What it is.
    pub description: String,
    /// Its memory in bytes, and how much of it is free.
    pub memory: u64,
    /// See [`Self::memory`].
    pub free: u64,
}

/// All of them; none where no GPU backend was compiled in, or where its driver finds none.
pub fn gpus() -> Vec<Gpu> {
    Backend::init();
    // SAFETY: reads the list of devices, which is complete after the initialisation.
    let count = unsafe { sys::ggml_backend_dev_count() };
    (0..count).filter_map(gpu).collect()
}

fn gpu(index: usize) -> Option<Gpu> {
    let (mut free, mut memory) = (0, 0);
    // SAFETY: the index is below the count; a device lives as long as the process, and so do its texts.
    unsafe {
        let device = sys::ggml_backend_dev_get(index);
        let kind = sys::ggml_backend_dev_type(device);
        let kinds = [sys::GGML_BACKEND_DEVICE_TYPE_GPU, sys::GGML_BACKEND_DEVICE_TYPE_IGPU];
        if !kinds.contains(&kind) {
            return None;
        }
        sys::ggml_backend_dev_memory(device, &mut free, &mut memory);
        Some(Gpu {
            name: text(sys::ggml_backend_dev_name(device)),
            description: text(sys::ggml_backend_dev_description(device)),
            memory: memory as u64,
            free: free as u64,
        })
    }
}

/// # Safety
/// It is null, or the start of a NUL-terminated text.
unsafe fn text(raw: *const c_char) -> String {
    if raw.is_null() {
        return String::new();
    }
    // SAFETY: as the caller says.
    unsafe { CStr::from_ptr(raw) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_need_a_backend() {
        let found = gpus();
        assert!(!GPU_BACKENDS.is_empty() || found.is_empty(), "{found:?}");
        assert!(found.iter().all(|gpu| !gpu.name.is_empty()), "{found:?}");
    }
}
