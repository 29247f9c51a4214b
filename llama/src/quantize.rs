//! Making a smaller file of a model, or one of another kind.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use llama_cpp_sys_2 as sys;

use crate::{Backend, LoadError, log};

/// How weights are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantization {
    /// Blocks of 32 weights of 4 bits with a scale.
    Q4_0,
    /// Blocks of 32 weights of 8 bits with a scale.
    Q8_0,
    /// Single precision, for references.
    F32,
}

/// Writes a model's file with its weights stored in another way; what was lost before stays lost. An
/// existing `output` is written over.
pub fn quantize(input: &Path, output: &Path, to: Quantization) -> Result<(), LoadError> {
    Backend::init();
    let c_path =
        |path: &Path| CString::new(path.as_os_str().as_bytes()).map_err(|_| LoadError::Path);
    let (input, output) = (c_path(input)?, c_path(output)?);
    // SAFETY: a plain value.
    let mut params = unsafe { sys::llama_model_quantize_default_params() };
    params.allow_requantize = true;
    params.ftype = match to {
        Quantization::Q4_0 => sys::LLAMA_FTYPE_MOSTLY_Q4_0,
        Quantization::Q8_0 => sys::LLAMA_FTYPE_MOSTLY_Q8_0,
        Quantization::F32 => sys::LLAMA_FTYPE_ALL_F32,
    };
    // SAFETY: the paths are NUL-terminated, and they and the parameters outlive the call.
    let (code, errors) = log::capture(|| unsafe {
        sys::llama_model_quantize(input.as_ptr(), output.as_ptr(), &params)
    });
    match code {
        0 => Ok(()),
        _ => Err(LoadError::Refused(
            errors.into_iter().next().unwrap_or_else(|| "it can't be quantized".into()),
        )),
    }
}
