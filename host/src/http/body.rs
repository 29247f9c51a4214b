//! The body of an answer on its way to the client.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use tokio::time::{Instant, Sleep, sleep};

use super::in_flight::{InFlight, Place};
use super::patience::{Guard, Held};
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
    /// The instance's life and its place at the gate; gone once it has ended, or has been taken from a
    /// client that doesn't read.
    held: Arc<Held<(Option<Life>, Place)>>,
    _guard: Guard,
    /// Whether the instance ended badly, so that the body is not whole.
    failed: bool,
    /// Whether data of the guest's was given away that may not have been sent yet.
    unsent: bool,
    in_flight: InFlight,
    keep_alive: Option<KeepAlive>,
}

/// What became of an instance that was to go on.
enum Going {
    /// It goes on.
    On,
    /// It has just ended.
    Ended { failed: bool },
    /// It had ended before.
    Over,
    /// It was taken from a client that doesn't read.
    Taken,
}

/// Lets an instance go on for as long as it can.
fn go_on(life: &mut Option<Life>, cx: &mut Context<'_>) -> Going {
    match life.as_mut().map(|life| life.as_mut().poll(cx)) {
        None => Going::Over,
        Some(Poll::Pending) => Going::On,
        Some(Poll::Ready(ended)) => {
            *life = None;
            Going::Ended { failed: ended.is_err() }
        }
    }
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
    /// `patience` is for a client that leaves something unread.
    pub fn new(
        inner: B,
        life: Life,
        mut in_flight: InFlight,
        keep_alive: Option<Duration>,
        patience: Duration,
    ) -> Self {
        let keep_alive = keep_alive.map(|period| KeepAlive {
            period,
            silence: Box::pin(sleep(period)),
            between_events: true,
        });
        let (held, guard) = Held::new((Some(life), in_flight.take_place()), patience);
        Self { inner, held, _guard: guard, failed: false, unsent: false, in_flight, keep_alive }
    }

    /// The whole body was taken. What the guest still does after its answer, it does by itself.
    fn complete(&mut self) {
        self.in_flight.complete();
        if let Some(life) = self.held.with(|(life, _)| life.take()).flatten() {
            tokio::spawn(tokio::time::timeout(AFTERWARDS, life));
        }
    }
}

impl<B> InstanceBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if std::mem::take(&mut self.unsent) {
            // Connections send what they have when there is no more for now. If the guest went on
            // before that, and asked for its next step, what is to be sent would wait for a core
            // while the step is computed.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        loop {
            if let Poll::Ready(frame) = Pin::new(&mut self.inner).poll_frame(cx) {
                return Poll::Ready(self.took(frame));
            }
            match self.held.with(|(life, _)| go_on(life, cx)).unwrap_or(Going::Taken) {
                Going::On => {
                    // The guest may have written something.
                    if let Poll::Ready(frame) = Pin::new(&mut self.inner).poll_frame(cx) {
                        return Poll::Ready(self.took(frame));
                    }
                    break;
                }
                Going::Ended { failed } => self.failed = failed,
                Going::Over => break,
                Going::Taken => {
                    self.failed = true;
                    break;
                }
            }
        }
        match &mut self.keep_alive {
            _ if self.failed => Poll::Ready(Some(Err(Box::new(InstanceFailed)))),
            Some(keep_alive) => keep_alive.poll(cx).map(|comment| Some(Ok(comment))),
            None => Poll::Pending,
        }
    }

    /// Takes note of what the guest has written.
    fn took(
        &mut self,
        frame: Option<Result<Frame<Bytes>, B::Error>>,
    ) -> Option<Result<Frame<Bytes>, BoxError>> {
        match frame {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    self.unsent = true;
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
            None if self.failed || self.held.is_taken() => Some(Err(Box::new(InstanceFailed))),
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
        this.held.all_read();
        let polled = this.poll(cx);
        if let Poll::Ready(Some(Ok(_))) = polled {
            // Until it is polled again, the client has not taken this.
            this.held.something_to_read();
        }
        polled
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

    const PATIENCE: Duration = Duration::from_secs(3600);

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
            let stream = StreamBody::new(stream);
            let mut body = InstanceBody::new(stream, life, in_flight, None, PATIENCE);
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
        let stream = StreamBody::new(stream);
        let mut body = InstanceBody::new(stream, life, in_flight, Some(period), PATIENCE);
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

    /// Connections send what they have when the body has no more for now.
    #[tokio::test]
    async fn what_a_guest_has_written_is_sent_before_it_goes_on() {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let written = futures::stream::poll_fn(move |cx| {
            receiver
                .poll_recv(cx)
                .map(|event| event.map(|event| Ok::<_, BoxError>(Frame::data(event))))
        });
        let life: Life = Box::pin(async move {
            for event in ["one", "two"] {
                sender.send(Bytes::from(event)).unwrap();
                tokio::task::yield_now().await;
            }
            Ok(())
        });
        let in_flight = InFlight::untracked();
        let mut body = InstanceBody::new(StreamBody::new(written), life, in_flight, None, PATIENCE);
        let mut polled = Vec::new();
        while polled.last() != Some(&None) {
            let frame = std::future::poll_fn(|cx| Poll::Ready(body.poll(cx))).await;
            polled.push(match frame {
                Poll::Pending => Some("nothing for now".into()),
                Poll::Ready(frame) => frame.map(|frame| frame.unwrap().into_data().unwrap()),
            });
        }
        let expected = ["one", "nothing for now", "two", "nothing for now"];
        assert_eq!(polled[..4], expected.map(|frame| Some(Bytes::from(frame))));
    }

    #[tokio::test]
    async fn a_client_that_stops_reading_loses_its_instance() {
        let (alive, ended) = tokio::sync::oneshot::channel::<()>();
        let life: Life = Box::pin(async move {
            let _alive = alive;
            std::future::pending().await
        });
        let events =
            (0..2).map(|_| Ok::<_, BoxError>(Frame::data(Bytes::from_static(b"data: 1\n\n"))));
        let stream = StreamBody::new(futures::stream::iter(events));
        let patience = Duration::from_millis(1);
        let in_flight = InFlight::untracked();
        let mut body = InstanceBody::new(stream, life, in_flight, None, patience);
        assert_eq!(next(&mut body).await, "data: 1\n\n");
        assert!(ended.await.is_err(), "the life was dropped, though nobody polled the body");
        // What the guest has written ends with it, which must not look like the answer's own end.
        assert_eq!(next(&mut body).await, "data: 1\n\n");
        assert!(body.frame().await.unwrap().is_err());
    }
}
