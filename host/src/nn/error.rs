//! Errors that reach the component.

/// The kinds of `wasi:nn/errors.error-code` that this host gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NnErrorCode {
    /// The caller's input is at fault; the message names it.
    InvalidArgument,
    /// The reservation found no room in time.
    Timeout,
    /// The backend's own failure.
    RuntimeError,
    /// This backend can't do that.
    UnsupportedOperation,
    /// The reservation could never be met.
    TooLarge,
    /// No model of that name.
    NotFound,
    /// A model that this component may not use.
    Security,
}

/// An error of `wasi:nn`: its code and a sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct NnError {
    /// The kind.
    pub code: NnErrorCode,
    /// A sentence for people; what the component reads as the error's `data`.
    pub message: String,
}

macro_rules! constructors {
    ($($(#[$doc:meta])* $name:ident => $code:ident),* $(,)?) => {
        impl NnError {$(
            $(#[$doc])*
            pub fn $name(message: impl Into<String>) -> Self {
                Self { code: NnErrorCode::$code, message: message.into() }
            }
        )*}
    };
}

constructors! {
    /// The caller's input is at fault.
    invalid_argument => InvalidArgument,
    /// No room in time.
    timeout => Timeout,
    /// The backend failed.
    runtime => RuntimeError,
    /// The backend can't.
    unsupported => UnsupportedOperation,
    /// Never any room.
    too_large => TooLarge,
    /// No such model.
    not_found => NotFound,
    /// Not for this component.
    security => Security,
}
