//! What components write to stdout and stderr, as lines of the log.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::AsyncWrite;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};

/// The most bytes of one line; longer ones are broken.
const LONGEST_LINE: usize = 8 << 10;

/// A stream whose lines are logged with the component's id and the request's.
#[derive(Clone)]
pub struct GuestLog {
    /// The component's id.
    pub component: Arc<str>,
    /// The request's id; none while a snapshot is taken.
    pub request: Arc<str>,
}

impl IsTerminal for GuestLog {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for GuestLog {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(Lines { log: self.clone(), line: Vec::new() })
    }
}

struct Lines {
    log: GuestLog,
    line: Vec<u8>,
}

impl Lines {
    fn emit(&mut self) {
        let line = String::from_utf8_lossy(&self.line);
        let line = line.trim_end();
        if !line.is_empty() {
            let (component, request) = (&self.log.component, &self.log.request);
            tracing::warn!(target: "spinfer::guest", %component, %request, "{line}");
        }
        self.line.clear();
    }
}

impl AsyncWrite for Lines {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        for &byte in bytes {
            self.line.push(byte);
            if byte == b'\n' || self.line.len() == LONGEST_LINE {
                self.emit();
            }
        }
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.emit();
        Poll::Ready(Ok(()))
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.emit();
    }
}
