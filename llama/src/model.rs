//! Loaded weights.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{self, NonNull};

use llama_cpp_sys_2 as sys;

use crate::{Backend, log};

/// How to load a model.
#[derive(Debug, Clone, Default)]
pub struct ModelParams {
    /// Load the vocabulary alone; such a model can tokenize but not decode.
    pub vocab_only: bool,
    /// Check the weights for values that can't be (slow on large files).
    pub check_tensors: bool,
    /// Layers to keep on GPUs; with 0 the CPU computes alone.
    pub gpu_layers: u32,
    /// Take the file's `tokenizer.ggml.pre` for `gpt-2`, whatever it says: for files that name one that
    /// llama.cpp doesn't know, when somebody else tokenizes.
    pub ignore_pre_tokenizer: bool,
}

/// Why a model did not load.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The path has a NUL byte.
    #[error("the path holds a NUL byte")]
    Path,
    /// llama.cpp refused the file; its own words, if it said any.
    #[error("llama.cpp can't load it: {0}")]
    Refused(String),
}

/// Loaded weights and their vocabulary. Immutable, so it is shared between threads freely.
pub struct Model {
    raw: NonNull<sys::llama_model>,
    pub(crate) vocab: NonNull<sys::llama_vocab>,
    vocab_only: bool,
}

// SAFETY: after loading, the library only reads a model; all mutation is in contexts.
unsafe impl Send for Model {}
// SAFETY: as above.
unsafe impl Sync for Model {}

impl Model {
    /// Loads a GGUF file. Some kinds of damage abort the process instead of failing here.
    pub fn load(path: &Path, params: &ModelParams) -> Result<Self, LoadError> {
        Backend::init();
        let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| LoadError::Path)?;
        // SAFETY: a plain value.
        let mut raw_params = unsafe { sys::llama_model_default_params() };
        raw_params.vocab_only = params.vocab_only;
        raw_params.check_tensors = params.check_tensors;
        raw_params.n_gpu_layers = i32::try_from(params.gpu_layers).unwrap_or(i32::MAX);
        // A null pointer ends the list: no device beside the CPU.
        let mut no_devices = [ptr::null_mut()];
        if params.gpu_layers == 0 {
            raw_params.devices = no_devices.as_mut_ptr();
        }
        // An entry with an empty key ends the list.
        let overrides = [pre_tokenizer_is_gpt2(), no_override()];
        if params.ignore_pre_tokenizer {
            raw_params.kv_overrides = overrides.as_ptr();
        }
        // SAFETY: the path is NUL-terminated, and it, the devices and the overrides outlive the call.
        let (raw, errors) =
            log::capture(|| unsafe { sys::llama_model_load_from_file(path.as_ptr(), raw_params) });
        let raw = NonNull::new(raw).ok_or_else(|| LoadError::Refused(reason(&errors)))?;
        // SAFETY: the model is loaded; its vocabulary lives as long as it does.
        let vocab = unsafe { sys::llama_model_get_vocab(raw.as_ptr()) };
        let Some(vocab) = NonNull::new(vocab.cast_mut()) else {
            // SAFETY: just loaded, and nobody else has it.
            unsafe { sys::llama_model_free(raw.as_ptr()) };
            return Err(LoadError::Refused("it has no vocabulary".into()));
        };
        Ok(Self { raw, vocab, vocab_only: params.vocab_only })
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::llama_model {
        self.raw.as_ptr()
    }

    /// Whether only the vocabulary was loaded.
    pub fn is_vocab_only(&self) -> bool {
        self.vocab_only
    }

    /// The context length that the model was trained with, in tokens.
    pub fn trained_context(&self) -> u32 {
        // SAFETY: reads a field.
        unsafe { sys::llama_model_n_ctx_train(self.as_ptr()) }.max(0) as u32
    }

    /// The bytes of all tensors.
    pub fn size(&self) -> u64 {
        // SAFETY: reads a field.
        unsafe { sys::llama_model_size(self.as_ptr()) }
    }

    /// Whether a sequence's memory can be cut at any position. Recurrent and hybrid models keep a
    /// running state instead of one cell a token, so they can't.
    pub fn can_rewind(&self) -> bool {
        // SAFETY: both read fields.
        unsafe {
            !sys::llama_model_is_recurrent(self.as_ptr())
                && !sys::llama_model_is_hybrid(self.as_ptr())
        }
    }

    /// Whether the model generates token by token from a decoder alone, as completions need.
    pub fn is_causal_decoder(&self) -> bool {
        // SAFETY: all read fields.
        unsafe {
            sys::llama_model_has_decoder(self.as_ptr())
                && !sys::llama_model_has_encoder(self.as_ptr())
                && !sys::llama_model_is_diffusion(self.as_ptr())
        }
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: contexts hold an `Arc` of their model, so none is left.
        unsafe { sys::llama_model_free(self.as_ptr()) }
    }
}

fn no_override() -> sys::llama_model_kv_override {
    // SAFETY: a plain struct of numbers and bytes, for which zeros are a value.
    unsafe { std::mem::zeroed() }
}

fn pre_tokenizer_is_gpt2() -> sys::llama_model_kv_override {
    let mut entry = no_override();
    entry.tag = sys::LLAMA_KV_OVERRIDE_TYPE_STR;
    copy_text(&mut entry.key, "tokenizer.ggml.pre");
    // SAFETY: all variants of the union are plain bytes, and it is zeroed.
    copy_text(unsafe { &mut entry.__bindgen_anon_1.val_str }, "gpt-2");
    entry
}

/// Copies a text that is shorter than the zeroed array.
fn copy_text(to: &mut [std::ffi::c_char], text: &str) {
    for (to, byte) in to.iter_mut().zip(text.bytes()) {
        *to = byte as std::ffi::c_char;
    }
}

/// The most telling of the captured lines: the first, which names the cause; later ones repeat that
/// loading failed.
fn reason(errors: &[String]) -> String {
    match errors.first() {
        Some(line) => line.split_once(": ").map_or(line.as_str(), |(_, rest)| rest).to_owned(),
        None => "no reason given".to_owned(),
    }
}
