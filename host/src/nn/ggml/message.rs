//! What execution contexts say to the scheduler of their model, and what it answers.
//!
//! Sending never waits, and an answer is awaited without holding a thread. A caller that drops its
//! receiver has cancelled: its rows leave at the border of the running step.

use tokio::sync::oneshot;

use super::memory::Scope;
use crate::nn::convention::Step;
use crate::nn::outputs::Outputs;
use crate::nn::{Arrival, NnError};

/// Names an execution context to its scheduler.
pub type ContextId = u64;

/// A message to the scheduler.
#[derive(Debug)]
pub enum Message {
    /// Asks for sequences; answered when there is room, or when the longest wait is over. The first
    /// message of a context.
    Reserve {
        context: ContextId,
        /// How many sequences, at most as many as the model has.
        sequences: u32,
        /// The request, which has arrived by that.
        arrival: Option<Arrival>,
        reply: oneshot::Sender<Result<(), NnError>>,
    },
    /// Appends tokens to the rows of an admitted context, one call at a time.
    Compute {
        context: ContextId,
        step: Step,
        /// With whom the rows may be shared; none: with nobody.
        scope: Option<Scope>,
        reply: oneshot::Sender<Result<Outputs, NnError>>,
    },
    /// The context is no more: whatever it waits for, computes or holds is let go.
    Close { context: ContextId },
    /// Ends the thread.
    Stop,
}
