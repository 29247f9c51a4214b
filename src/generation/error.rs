//! What can go wrong while tokens are made, and what the client hears of it.

use spinfer_protocol::ApiError;

use crate::sampling::NanLogits;

/// The kinds of failure that are answered differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackendErrorKind {
    /// There was no room in time.
    Busy,
    /// There will never be that much room.
    TooLarge,
    /// The host doesn't have the model, or this component may not use it.
    NoModel,
    /// Everything else.
    Failed,
}

/// A backend's refusal or failure.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct BackendError {
    /// What kind.
    pub kind: BackendErrorKind,
    /// In words.
    pub message: String,
}

impl BackendError {
    /// The answer for a request that named `model`.
    pub fn to_api(&self, model: &str) -> ApiError {
        match self.kind {
            BackendErrorKind::Busy => {
                let message = "The server is busy: there was no room for this request in time. Try again later.";
                ApiError::rate_limited(message, 1)
            }
            BackendErrorKind::TooLarge => {
                let message =
                    format!("This request needs more room than this server has: {}.", self.message);
                ApiError::context_length_exceeded("max_tokens", message)
            }
            BackendErrorKind::NoModel => ApiError::model_not_found(model),
            BackendErrorKind::Failed => {
                ApiError::internal(format!("The model failed to compute: {}.", self.message))
            }
        }
    }
}

/// Nobody is left to read the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the client has gone")]
pub struct ClientGone;

/// Why a generation ended early.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GenerationError {
    /// The backend refused or failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The model computes nonsense.
    #[error(transparent)]
    Nan(#[from] NanLogits),
    /// There is no need to go on.
    #[error(transparent)]
    ClientGone(#[from] ClientGone),
}

impl GenerationError {
    /// The answer for a request that named `model`.
    pub fn to_api(&self, model: &str) -> ApiError {
        match self {
            Self::Backend(error) => error.to_api(model),
            Self::Nan(_) | Self::ClientGone(_) => {
                ApiError::internal(format!("The generation failed: {self}."))
            }
        }
    }
}
