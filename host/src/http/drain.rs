//! What is left of a request's body when nobody reads it any more.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;

/// How long, and how many bytes of it, a client may go on sending a body that nobody reads.
const LONGEST: Duration = Duration::from_secs(5);
const MOST: usize = 256 << 20;

/// A body whose rest is read and thrown away when it is dropped. A connection that is closed while
/// the client still sends is reset, and the client may then never see the answer that told it why
/// its body was not taken.
pub struct Drained<B: Body<Data = Bytes> + Send + Unpin + 'static>(Option<B>);

impl<B: Body<Data = Bytes> + Send + Unpin + 'static> Drained<B> {
    /// Wraps a body; it must be dropped within a tokio runtime.
    pub fn new(body: B) -> Self {
        Self(Some(body))
    }
}

impl<B: Body<Data = Bytes> + Send + Unpin + 'static> Body for Drained<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match &mut self.0 {
            Some(body) => Pin::new(body).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl<B: Body<Data = Bytes> + Send + Unpin + 'static> Drop for Drained<B> {
    fn drop(&mut self) {
        let Some(body) = self.0.take().filter(|body| !body.is_end_stream()) else { return };
        let runtime = tokio::runtime::Handle::try_current();
        if let Ok(runtime) = runtime {
            // Whoever takes longer is cut off.
            runtime.spawn(tokio::time::timeout(LONGEST, drain(body)));
        }
    }
}

async fn drain<B: Body<Data = Bytes> + Unpin>(mut body: B) {
    let mut read = 0;
    while let Some(Ok(frame)) = body.frame().await {
        read += frame.data_ref().map_or(0, Bytes::len);
        if read > MOST {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Notify;

    use super::*;

    /// Frames of one byte, which are counted.
    struct Counted {
        left: usize,
        taken: Arc<AtomicUsize>,
        ended: Arc<Notify>,
    }

    impl Body for Counted {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            if self.left == 0 {
                self.ended.notify_one();
                return Poll::Ready(None);
            }
            self.left -= 1;
            self.taken.fetch_add(1, Ordering::Relaxed);
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"x")))))
        }
    }

    #[tokio::test]
    async fn the_rest_is_read_when_the_body_is_dropped() {
        let (taken, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
        let body = Counted { left: 10, taken: taken.clone(), ended: ended.clone() };
        let mut drained = Drained::new(body);
        drained.frame().await.unwrap().unwrap();
        assert_eq!(taken.load(Ordering::Relaxed), 1);
        drop(drained);
        ended.notified().await;
        assert_eq!(taken.load(Ordering::Relaxed), 10);
    }
}
