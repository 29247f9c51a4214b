//! The body of an answer on its way to the client.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use tokio::time::{Instant, Sleep, sleep};

use super::service::InFlight;
use super::worker::{InstanceFailed, Life};

/// Any error that a body can end with.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body of any answer.
pub type AnswerBody = UnsyncBoxBody<Bytes, BoxError>;

/// A silent event stream is given a sign of life this often.
pub const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// A guest may go on this long after the last byte of its answer.
const AFTERWARDS: Duration = Duration::from_secs(10);

/// A comment of the event-stream format. Some clients take `: ping` for the end of the stream.
const SIGN_OF_LIFE: &[u8] = b": keep-alive\n\n";

/// A body that is there already.
pub fn full(content: impl Into<Bytes>) -> AnswerBody {
    Full::new(content.into()).map_err(|never| match never {}).boxed_unsync()
}

/// The body that an instance writes, and the instance itself: it runs while the body is polled. So each
/// chunk leaves before the guest goes on after it, and dropping the body, as happens when the client
/// goes away, ends the instance.
pub struct InstanceBody<B> {
    inner: B,
    /// None once it has ended.
    life: Option<Life>,
    /// Whether it ended badly, so that the body is not whole.
    failed: bool,
    in_flight: InFlight,
    keep_alive: Option<KeepAlive>,
}

/// Puts comments between the events of a stream when nothing else comes.
struct KeepAlive {
    period: Duration,
    silence: Pin<Box<Sleep>>,
    /// Whether what was sent ends with a blank line, so that a comment may follow.
    between_events: bool,
}

impl KeepAlive {
    /// Silence begins now.
    fn restart(&mut self) {
        self.silence.as_mut().reset(Instant::now() + self.period);
    }

    /// A comment, when it has been silent for long enough and one may be sent.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Frame<Bytes>> {
        ready!(self.silence.as_mut().poll(cx));
        self.restart();
        if self.between_events {
            return Poll::Ready(Frame::data(Bytes::from_static(SIGN_OF_LIFE)));
        }
        // Polled again to be woken at the end of the next silence.
        let _ = self.silence.as_mut().poll(cx);
        Poll::Pending
    }
}

impl<B> InstanceBody<B> {
    /// Wraps a body. A `text/event-stream` is to be given a sign of life every `keep_alive`.
    pub fn new(inner: B, life: Life, in_flight: InFlight, keep_alive: Option<Duration>) -> Self {
        let keep_alive = keep_alive.map(|period| KeepAlive {
            period,
            silence: Box::pin(sleep(period)),
            between_events: true,
        });
        Self { inner, life: Some(life), failed: false, in_flight, keep_alive }
    }

    /// The whole body was taken. What the guest still does after its answer, it does by itself.
    fn complete(&mut self) {
        self.in_flight.complete();
        if let Some(life) = self.life.take() {
            tokio::spawn(tokio::time::timeout(AFTERWARDS, life));
        }
    }
}

impl<B> InstanceBody<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    /// Takes note of what the guest has written.
    fn took(
        &mut self,
        frame: Option<Result<Frame<Bytes>, B::Error>>,
    ) -> Option<Result<Frame<Bytes>, BoxError>> {
        match frame {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    self.in_flight.count(data.len());
                    if let Some(keep_alive) = self.keep_alive.as_mut().filter(|_| !data.is_empty())
                    {
                        keep_alive.between_events = data.ends_with(b"\n\n");
                        keep_alive.restart();
                    }
                }
                if self.in_flight.is_complete() || self.inner.is_end_stream() {
                    self.complete();
                }
                Some(Ok(frame))
            }
            Some(Err(error)) => Some(Err(error.into())),
            // Else the client would take what there is for all.
            None if self.failed => Some(Err(Box::new(InstanceFailed))),
            None => {
                self.complete();
                None
            }
        }
    }
}

impl<B> Body for InstanceBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        loop {
            if let Poll::Ready(frame) = Pin::new(&mut this.inner).poll_frame(cx) {
                return Poll::Ready(this.took(frame));
            }
            let Some(life) = &mut this.life else { break };
            if let Poll::Ready(ended) = life.as_mut().poll(cx) {
                this.life = None;
                this.failed = ended.is_err();
            }
            // The guest may have written something, or ended.
            if let Poll::Ready(frame) = Pin::new(&mut this.inner).poll_frame(cx) {
                return Poll::Ready(this.took(frame));
            }
            if this.life.is_some() {
                break;
            }
        }
        match &mut this.keep_alive {
            Some(keep_alive) => keep_alive.poll(cx).map(|comment| Some(Ok(comment))),
            None => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match self.keep_alive {
            // Comments may come in between.
            Some(_) => SizeHint::default(),
            None => self.inner.size_hint(),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::Stream;
    use http_body_util::StreamBody;
    use tokio::sync::mpsc;

    use super::*;

    async fn next<B>(body: &mut InstanceBody<B>) -> Bytes
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: Into<BoxError> + std::fmt::Debug,
    {
        let frame = body.frame().await.unwrap().unwrap();
        frame.into_data().unwrap()
    }

    #[tokio::test]
    async fn the_body_of_an_instance_that_failed_is_no_whole_body() {
        for failed in [false, true] {
            let life = Box::pin(async move { if failed { Err(InstanceFailed) } else { Ok(()) } });
            let mut ends_with_life = futures::stream::iter([Ok::<_, BoxError>(Frame::data(
                Bytes::from_static(b"half"),
            ))]);
            let mut polls = 0;
            let stream = futures::stream::poll_fn(move |cx| {
                polls += 1;
                // The frame, then nothing until the instance has ended, then the end.
                if polls == 2 { Poll::Pending } else { Pin::new(&mut ends_with_life).poll_next(cx) }
            });
            let in_flight = InFlight::untracked();
            let mut body = InstanceBody::new(StreamBody::new(stream), life, in_flight, None);
            assert_eq!(next(&mut body).await, "half");
            let end = body.frame().await;
            assert_eq!(end.is_some_and(|end| end.is_err()), failed);
        }
    }

    #[tokio::test]
    async fn a_silent_stream_is_kept_alive_between_events() {
        let (sender, mut receiver) = mpsc::unbounded_channel::<&'static str>();
        let stream = futures::stream::poll_fn(move |cx| {
            receiver.poll_recv(cx).map(|event| {
                event.map(|event| Ok::<_, std::io::Error>(Frame::data(Bytes::from(event))))
            })
        });
        let period = Duration::from_millis(1);
        let (life, in_flight) = (Box::pin(std::future::pending()), InFlight::untracked());
        let mut body = InstanceBody::new(StreamBody::new(stream), life, in_flight, Some(period));
        sender.send("data: 1\n\n").unwrap();
        assert_eq!(next(&mut body).await, "data: 1\n\n");
        assert_eq!(next(&mut body).await, ": keep-alive\n\n");
        assert_eq!(next(&mut body).await, ": keep-alive\n\n");
        sender.send("data: half").unwrap();
        assert_eq!(next(&mut body).await, "data: half");
        let silence = tokio::time::timeout(10 * period, body.frame()).await;
        assert!(silence.is_err(), "no comment inside an event");
        sender.send("\n\n").unwrap();
        assert_eq!(next(&mut body).await, "\n\n");
        drop(sender);
        assert!(body.frame().await.is_none());
    }
}
