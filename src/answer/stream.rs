//! Server-sent events: one for each delta.

use std::future::Future;

use spinfer_protocol::ApiError;

use super::completion::Head;
use crate::generation::{ClientGone, Delta, Sink, Usage};
use crate::request::StreamOptions;
use crate::sampling::Rng;

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
    /// For obfuscation.
    rng: Rng,
    body: W,
}

impl<W: ByteSink> Events<W> {
    /// The events of one answer. `random` decides their obfuscation.
    pub fn new(head: Head, options: StreamOptions, random: u64, body: W) -> Self {
        Self { head, options, rng: Rng::new(random, 0), body }
    }

    /// Ends a stream that has all its deltas.
    pub async fn finish(mut self, usage: Usage) -> Result<(), ClientGone> {
        if self.options.include_usage {
            let noise = self.noise(0);
            let chunk = self.head.object(&[], Some(Some(usage)), noise);
            self.event(&chunk).await?;
        }
        self.event("[DONE]").await
    }

    /// Ends a stream that failed.
    pub async fn fail(mut self, error: &ApiError) -> Result<(), ClientGone> {
        self.event(&error.to_json()).await
    }

    /// Letters that, with a text of so many bytes, make up a whole number of blocks and up to three
    /// blocks more, so that lengths say little about texts.
    fn noise(&mut self, text: usize) -> Option<String> {
        const BLOCK: usize = 16;
        self.options.include_obfuscation.then(|| {
            let blocks = (self.rng.uniform() * 4.0) as usize;
            let length = text.next_multiple_of(BLOCK) - text + blocks * BLOCK;
            let letter = |_| char::from(b'a' + (self.rng.uniform() * 26.0) as u8);
            (0..length).map(letter).collect()
        })
    }

    async fn event(&mut self, data: &str) -> Result<(), ClientGone> {
        // JSON has no line breaks outside strings, and none unescaped inside: one line is enough.
        self.body.write(format!("data: {data}\n\n").into_bytes()).await
    }
}

impl<W: ByteSink> Sink for Events<W> {
    async fn send(&mut self, delta: Delta) -> Result<(), ClientGone> {
        let noise = self.noise(delta.text.len());
        let usage = self.options.include_usage.then_some(None);
        let choices = [self.head.choice(&delta, true)];
        let chunk = self.head.object(&choices, usage, noise);
        self.event(&chunk).await
    }
}
