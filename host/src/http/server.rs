//! Connections: accepting them, and ending them at the end.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulConnection, GracefulShutdown};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::service::Service;

/// How long requests in flight may take to end after the signal to stop.
const DRAIN: Duration = Duration::from_secs(30);

/// A client has this long to send the head of a request, and before that as long for TLS's handshake.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// An HTTP/2 connection on which nothing comes is asked this often whether anybody is there.
const PING: Duration = Duration::from_secs(20);

/// Signals that come this close together are one: a Ctrl-C may bring both INT and TERM.
const ONE_SIGNAL: Duration = Duration::from_secs(1);

/// SIGINT and SIGTERM.
pub struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignals {
    /// Takes the signals over from their default, which is to kill.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Waits for one.
    pub async fn wait(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Serves until told to stop, then lets the requests in flight end, for a bounded time.
pub async fn serve(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    service: Arc<Service>,
    stop: &mut StopSignals,
) {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(PING);
    let connections = GracefulShutdown::new();
    let (serving, stopping) = watch::channel(());
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, client)) => {
                    // Chunks of a stream are small and must not wait for more.
                    if let Err(error) = stream.set_nodelay(true) {
                        tracing::debug!(%error, "TCP_NODELAY");
                    }
                    let (builder, service) = (builder.clone(), service.clone());
                    let watcher = connections.watcher();
                    match tls.clone() {
                        None => {
                            tokio::spawn(watcher.watch(connection(&builder, stream, client, service)));
                        }
                        Some(tls) => {
                            let mut stopping = stopping.clone();
                            tokio::spawn(async move {
                                let agreed = tokio::select! {
                                    agreed = handshake(&tls, stream, client) => agreed,
                                    // Nothing is lost with a client that has not asked for anything.
                                    _ = stopping.changed() => None,
                                };
                                if let Some(stream) = agreed {
                                    let connection = connection(&builder, stream, client, service);
                                    // How a connection ends is its client's affair.
                                    let _ = watcher.watch(connection).await;
                                }
                            });
                        }
                    }
                }
                Err(error) => {
                    // Out of file descriptors, most likely: others must end first.
                    tracing::warn!(%error, "can't accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
            () = stop.wait() => break,
        }
    }
    drop(listener);
    drop(serving);
    drain(connections, stop).await;
}

/// Agrees with a client on keys; none if that fails.
async fn handshake(
    tls: &TlsAcceptor,
    stream: TcpStream,
    client: SocketAddr,
) -> Option<TlsStream<TcpStream>> {
    match tokio::time::timeout(HEAD_TIMEOUT, tls.accept(stream)).await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::debug!(%client, %error, "no TLS with a client");
            None
        }
        Err(_) => None,
    }
}

fn connection(
    builder: &auto::Builder<TokioExecutor>,
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    client: SocketAddr,
    service: Arc<Service>,
) -> impl GracefulConnection<Error: Send> + Send + 'static {
    let service = service_fn(move |request| service.clone().handle(request, client));
    builder.serve_connection(TokioIo::new(stream), service).into_owned()
}

async fn drain(connections: GracefulShutdown, stop: &mut StopSignals) {
    let stopped = Instant::now();
    let open = connections.count();
    if open > 0 {
        tracing::info!(connections = open, "stopping; a further signal stops at once");
    }
    let again = async {
        loop {
            stop.wait().await;
            if stopped.elapsed() > ONE_SIGNAL {
                return;
            }
        }
    };
    tokio::select! {
        () = connections.shutdown() => {}
        () = again => tracing::warn!("stopping at once"),
        () = tokio::time::sleep(DRAIN) => tracing::warn!("requests did not end within {DRAIN:?}"),
    }
}
