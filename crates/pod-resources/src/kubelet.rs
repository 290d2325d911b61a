//! One connection to the kubelet, and the two requests that it answers.
//!
//! Invariant: every step ends within the limit. A connection is meant for one round only: a kubelet that restarts
//! replaces its socket, and on an old connection the restart would be noticed only when a request fails.

use std::future::{Future, ready};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;
use tower::service_fn;

use crate::answer::{self, Allocated};
use crate::device::Device;
use crate::error::{Error, Malformed};

/// The longest answer that is read, in bytes. It leaves 38 KiB for each of 110 pods, and a GPU takes 50 bytes. An
/// answer full of empty entries takes up to forty times its length in memory, so a longer one could exhaust the
/// machine's memory.
const LONGEST_ANSWER: usize = 4 << 20;
/// How long a request may take, after its connection has ended, to return an answer or error that had already
/// arrived. On one in 2000 connections that the peer closes at once, tonic returns neither and the request never
/// completes.
const LAST_ANSWER: Duration = Duration::from_secs(1);

/// A connection to the kubelet, for one round of requests.
#[derive(Debug)]
pub struct Kubelet {
    peer: Peer,
    client: Grpc<Channel>,
    /// Whether tonic requested a second connection, and so did not send the request. Not the same as `ended`: a
    /// server may answer with an error and close the connection.
    unsent: Arc<AtomicBool>,
    /// Closed when the connection has ended.
    ended: watch::Receiver<()>,
}

/// The socket, and the time limit for a step.
#[derive(Debug)]
struct Peer {
    socket: PathBuf,
    limit: Duration,
}

impl Kubelet {
    /// Connects to the process that is listening at the path now. `limit` is the time limit for connecting, and later
    /// for each request.
    ///
    /// # Errors
    ///
    /// Any [`Error`] except [`Error::Malformed`] and [`Error::Refused`].
    pub async fn connect(socket: impl Into<PathBuf>, limit: Duration) -> Result<Self, Error> {
        let peer = Peer { socket: socket.into(), limit };
        let unsent = Arc::new(AtomicBool::new(false));
        let (alive, ended) = watch::channel(());
        let channel = peer.within(async {
            let stream = UnixStream::connect(&peer.socket).await;
            let stream = stream.map_err(|error| Error::connecting(&peer.socket, error))?;
            open(Connection { stream, _alive: alive }, &unsent)
                .await
                .map_err(|error| Error::handshake(&peer.socket, error))
        });
        let client = Grpc::new(channel.await?).max_decoding_message_size(LONGEST_ANSWER);
        Ok(Self { peer, client, unsent, ended })
    }

    /// The allocated devices (`List`), those of claims included.
    ///
    /// # Errors
    ///
    /// If there is no answer, or the answer cannot be understood in full.
    pub async fn allocated(&mut self) -> Result<Allocated, Error> {
        Ok(answer::allocated(&self.ask("/v1.PodResourcesLister/List").await?))
    }

    /// The allocatable devices (`GetAllocatableResources`), allocated ones included, sorted and without duplicates.
    ///
    /// # Errors
    ///
    /// As for [`Kubelet::allocated`]; [`Error::Refused`] from a kubelet that does not list them.
    pub async fn allocatable(&mut self) -> Result<Vec<Device>, Error> {
        Ok(answer::allocatable(&self.ask("/v1.PodResourcesLister/GetAllocatableResources").await?))
    }

    async fn ask<T: Message + Default + 'static>(&mut self, method: &'static str) -> Result<T, Error> {
        let Self { peer, client, unsent, ended } = self;
        let answer = peer.within(async {
            let mut request = pin!(caught(request(client, method)));
            tokio::select! {
                biased;
                answer = &mut request => Ok(answer),
                _ = ended.changed() => {
                    tokio::time::timeout(LAST_ANSWER, request).await.map_err(|_| Error::lost(&peer.socket))
                }
            }
        });
        let headers = || Error::Malformed(peer.socket.clone(), Malformed::Headers);
        let answer = answer.await?.ok_or_else(headers)?;
        answer.map_err(|status| Error::asking(&peer.socket, status, unsent.load(Ordering::Relaxed)))
    }
}

/// Makes a request without content.
async fn request<T: Message + Default + 'static>(
    client: &mut Grpc<Channel>,
    method: &'static str,
) -> Result<T, Status> {
    client.ready().await.map_err(|error| Status::unknown(format!("Service was not ready: {error}")))?;
    let answer = client.unary(Request::new(()), PathAndQuery::from_static(method), ProstCodec::default()).await?;
    Ok(answer.into_inner())
}

impl Peer {
    async fn within<T>(&self, step: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let late = |_| Error::Late(self.socket.clone(), self.limit);
        tokio::time::timeout(self.limit, step).await.map_err(late)?
    }
}

/// Opens HTTP/2 over the one stream. If tonic requests a second stream, it has lost the first. This is recorded in
/// `unsent`, and the next round connects again.
async fn open(stream: Connection, unsent: &Arc<AtomicBool>) -> Result<Channel, tonic::transport::Error> {
    let mut stream = Some(TokioIo::new(stream));
    let unsent = Arc::clone(unsent);
    let once = service_fn(move |_| {
        let stream = stream.take();
        unsent.store(stream.is_none(), Ordering::Relaxed);
        ready(stream.ok_or(io::Error::from(io::ErrorKind::NotConnected)))
    });
    // HTTP/2 requires a host name, but this one is never resolved: the stream is already connected.
    Endpoint::from_static("http://localhost").connect_with_connector(once).await
}

/// The stream, and the sender that closes `ended` when it is dropped.
struct Connection {
    stream: UnixStream,
    _alive: watch::Sender<()>,
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, room)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// `None` if the future panics. tonic panics on error details that are not base64, which would end the calling task.
async fn caught<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    std::future::poll_fn(move |context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(value)) => Poll::Ready(Some(value)),
        Err(_) => Poll::Ready(None),
    })
    .await
}
