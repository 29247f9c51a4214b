//! The host's error resource as a value.

use std::fmt;

use crate::bindings::wasi::nn::errors;

pub use errors::ErrorCode;

/// Why a call failed: the code, and the host's sentence for people.
#[derive(Debug, Clone)]
pub struct Error {
    /// The kind of failure.
    pub code: ErrorCode,
    /// What happened, in words.
    pub data: String,
}

impl Error {
    /// A failure found on this side of the interface.
    pub fn new(code: ErrorCode, data: impl Into<String>) -> Self {
        Self { code, data: data.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code = match self.code {
            ErrorCode::InvalidArgument => "invalid argument",
            ErrorCode::InvalidEncoding => "invalid encoding",
            ErrorCode::Timeout => "timeout",
            ErrorCode::RuntimeError => "runtime error",
            ErrorCode::UnsupportedOperation => "unsupported operation",
            ErrorCode::TooLarge => "too large",
            ErrorCode::NotFound => "not found",
            ErrorCode::Security => "not permitted",
            ErrorCode::Unknown => "unknown error",
        };
        match self.data.as_str() {
            "" => f.write_str(code),
            data => write!(f, "{code}: {data}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<errors::Error> for Error {
    fn from(error: errors::Error) -> Self {
        Self { code: error.code(), data: error.data() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_reads_as_a_sentence() {
        let error = Error::new(ErrorCode::TooLarge, "9 rows");
        assert_eq!(error.to_string(), "too large: 9 rows");
        assert_eq!(Error::new(ErrorCode::NotFound, "").to_string(), "not found");
    }
}
