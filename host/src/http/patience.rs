//! Clients that take too long: to send a body, or to read an answer.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Sleep, sleep};
use wasmtime_wasi_http::Error as WasiHttpError;
use wasmtime_wasi_http::p3::bindings::http::types::ErrorCode;

/// A request's body that must have come whole by a deadline.
pub struct Hurried<B> {
    body: B,
    deadline: Pin<Box<Sleep>>,
}

impl<B> Hurried<B> {
    /// A body that has this long.
    pub fn new(body: B, patience: Duration) -> Self {
        Self { body, deadline: Box::pin(sleep(patience)) }
    }
}

impl<B: Body<Data = Bytes, Error = WasiHttpError> + Unpin> Body for Hurried<B> {
    type Data = Bytes;
    type Error = WasiHttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, WasiHttpError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            return Poll::Ready(frame);
        }
        ready!(self.deadline.as_mut().poll(cx));
        Poll::Ready(Some(Err(ErrorCode::ConnectionReadTimeout.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// What a reader who doesn't read must not hold: taken away from it when it takes too long.
pub struct Held<T> {
    held: Mutex<Option<T>>,
    reader: Reader,
}

/// Since when an answer's reader has had something to read.
struct Reader {
    began: Instant,
    has_something: AtomicBool,
    /// Milliseconds from `began`.
    since: AtomicU64,
}

impl<T: Send + 'static> Held<T> {
    /// Holds something for a reader who has nothing to read yet, and the guard that lets it go when
    /// the reader leaves something unread for too long.
    pub fn new(held: T, patience: Duration) -> (Arc<Self>, Guard) {
        let reader = Reader {
            began: Instant::now(),
            has_something: AtomicBool::new(false),
            since: AtomicU64::new(0),
        };
        let this = Arc::new(Self { held: Mutex::new(Some(held)), reader });
        let watched = Arc::downgrade(&this);
        let watch = tokio::spawn(async move {
            while let Some(this) = watched.upgrade() {
                let unread = this.reader.unread();
                if unread >= patience {
                    tracing::info!(?unread, "a client doesn't read its answer; it is let go");
                    this.take();
                    return;
                }
                drop(this);
                sleep(patience - unread).await;
            }
        });
        (this, Guard(watch))
    }

    /// Uses what is held, if it still is.
    pub fn with<R>(&self, use_it: impl FnOnce(&mut T) -> R) -> Option<R> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.as_mut().map(use_it)
    }

    /// What is held, if it still is.
    pub fn take(&self) -> Option<T> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Whether it was taken away.
    pub fn is_taken(&self) -> bool {
        self.with(|_| ()).is_none()
    }

    /// The reader has something to read from now on.
    pub fn something_to_read(&self) {
        let now = self.reader.began.elapsed().as_millis() as u64;
        self.reader.since.store(now, Ordering::Relaxed);
        self.reader.has_something.store(true, Ordering::Relaxed);
    }

    /// The reader has read everything.
    pub fn all_read(&self) {
        self.reader.has_something.store(false, Ordering::Relaxed);
    }
}

impl Reader {
    /// For how long something has been unread.
    fn unread(&self) -> Duration {
        if !self.has_something.load(Ordering::Relaxed) {
            return Duration::ZERO;
        }
        let since = Duration::from_millis(self.since.load(Ordering::Relaxed));
        self.began.elapsed().saturating_sub(since)
    }
}

/// Ends the watch over a reader when it is dropped.
pub struct Guard(tokio::task::JoinHandle<()>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use tokio::sync::oneshot;

    use super::*;

    /// Tells when it is dropped.
    struct Dropped(Option<oneshot::Sender<()>>);

    impl Drop for Dropped {
        fn drop(&mut self) {
            if let Some(sender) = self.0.take() {
                let _ = sender.send(());
            }
        }
    }

    #[tokio::test]
    async fn a_body_that_does_not_come_is_an_error() {
        let never = http_body_util::StreamBody::new(futures::stream::pending::<
            Result<Frame<Bytes>, WasiHttpError>,
        >());
        let mut body = Hurried::new(never, Duration::from_millis(1));
        assert!(body.frame().await.unwrap().is_err());
    }

    #[tokio::test]
    async fn who_leaves_something_unread_loses_what_it_holds() {
        let (sender, dropped) = oneshot::channel();
        let (held, _guard) = Held::new(Dropped(Some(sender)), Duration::from_millis(1));
        held.something_to_read();
        dropped.await.unwrap();
        assert!(held.is_taken());
    }

    #[tokio::test]
    async fn who_waits_for_more_keeps_it() {
        let patience = Duration::from_millis(1);
        let (sender, dropped) = oneshot::channel();
        let (held, _guard) = Held::new(Dropped(Some(sender)), patience);
        held.something_to_read();
        held.all_read();
        let lost = tokio::time::timeout(20 * patience, dropped).await;
        assert!(lost.is_err(), "nothing was unread");
        assert!(held.take().is_some());
    }
}
