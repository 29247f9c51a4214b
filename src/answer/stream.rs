//! Server-sent events: one for each delta.

use std::future::Future;

use spinfer_protocol::ApiError;

use super::Head;
use super::completion::Choice;
use crate::generation::{ClientGone, Delta, Sink, Usage};
use crate::request::StreamOptions;

/// A body that is written piece by piece.
pub trait ByteSink {
    /// Writes all of it. Done when the host has taken it, so that it leaves before anything else
    /// is computed.
    fn write(&mut self, bytes: Vec<u8>) -> impl Future<Output = Result<(), ClientGone>>;
}

/// An answer as events in a body.
#[derive(Debug)]
pub struct Events<W> {
    head: Head,
    options: StreamOptions,
    body: W,
}

impl<W: ByteSink> Events<W> {
    /// The events of one answer.
    pub fn new(head: Head, options: StreamOptions, body: W) -> Self {
        Self { head, options, body }
    }

    /// Ends a stream that has all its deltas.
    pub async fn finish(mut self, usage: Usage) -> Result<(), ClientGone> {
        if self.options.include_usage {
            let chunk = self.head.object(&[], Some(Some(usage)));
            self.event(&chunk).await?;
        }
        self.event("[DONE]").await
    }

    /// Ends a stream that failed.
    pub async fn fail(mut self, error: &ApiError) -> Result<(), ClientGone> {
        self.event(&error.to_json()).await
    }

    async fn event(&mut self, data: &str) -> Result<(), ClientGone> {
        // JSON has no line breaks outside strings, and none unescaped inside: one line is enough.
        self.body.write(format!("data: {data}\n\n").into_bytes()).await
    }
}

impl<W: ByteSink> Sink for Events<W> {
    async fn send(&mut self, delta: Delta) -> Result<(), ClientGone> {
        let choice = Choice {
            index: delta.index,
            text: &delta.text,
            logprobs: None,
            finish_reason: delta.finish,
        };
        let usage = self.options.include_usage.then_some(None);
        let chunk = self.head.object(&[choice], usage);
        self.event(&chunk).await
    }
}
