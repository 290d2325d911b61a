//! One connection to the kubelet, and the two questions it answers.
//!
//! Invariant: every step is over within the limit. A connection lasts for one round: a kubelet that starts again replaces
//! its socket, and whoever keeps a connection finds out by an error.

use std::future::{Future, ready};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

use super::Settings;
use super::answer;
use super::error::{Error, Malformed};
use super::v1::pod_resources_lister_client::PodResourcesListerClient;
use super::v1::{AllocatableResourcesRequest, ListPodResourcesRequest};
use crate::snapshot::{AllocatedDevice, Allocation};

/// The longest answer that is read, in bytes: 38 KiB for each of 110 pods, of which a GPU takes 50 bytes. An answer becomes
/// up to forty times as large in memory when it is full of empty entries, so that a longer one could take the machine's.
const LONGEST_ANSWER: usize = 4 << 20;
/// How long a question may take after its connection has ended, to give back an answer or an error that came before. In one of
/// 2000 connections that a peer breaks at once, tonic keeps the question and gives back neither.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A connection.
pub(super) struct Kubelet<'a> {
    settings: &'a Settings,
    client: PodResourcesListerClient<Channel>,
    /// Whether the connection is gone.
    gone: Arc<AtomicBool>,
    /// Closed when the connection has ended.
    ended: watch::Receiver<()>,
}

impl<'a> Kubelet<'a> {
    /// Connects to whoever listens at the path now.
    pub(super) async fn connect(settings: &'a Settings) -> Result<Self, Error> {
        let gone = Arc::new(AtomicBool::new(false));
        let (alive, ended) = watch::channel(());
        let channel = within(settings, async {
            let stream = UnixStream::connect(&settings.socket).await;
            let stream = stream.map_err(|error| Error::connecting(&settings.socket, error))?;
            open(Connection { stream, _alive: alive }, &gone)
                .await
                .map_err(|error| Error::shaking_hands(&settings.socket, error))
        });
        let client = PodResourcesListerClient::new(channel.await?).max_decoding_message_size(LONGEST_ANSWER);
        Ok(Self { settings, client, gone, ended })
    }

    /// The devices that containers hold.
    pub(super) async fn allocated(&mut self) -> Result<Vec<Allocation>, Error> {
        let question = self.client.list(ListPodResourcesRequest {});
        let answer = ask(self.settings, &self.gone, &mut self.ended, question).await?;
        Ok(answer::allocated(&answer))
    }

    /// The devices that can be handed out; [`Error::Refused`] from a kubelet that does not tell.
    pub(super) async fn allocatable(&mut self) -> Result<Vec<AllocatedDevice>, Error> {
        let question = self.client.get_allocatable_resources(AllocatableResourcesRequest {});
        Ok(answer::allocatable(&ask(self.settings, &self.gone, &mut self.ended, question).await?))
    }
}

/// HTTP/2 over the one stream. Who asks for a second one has lost the first: that is noted, and the next round connects anew.
async fn open(stream: Connection, gone: &Arc<AtomicBool>) -> Result<Channel, tonic::transport::Error> {
    let mut stream = Some(TokioIo::new(stream));
    let gone = Arc::clone(gone);
    let once = service_fn(move |_| {
        let stream = stream.take();
        gone.store(stream.is_none(), Ordering::Relaxed);
        ready(stream.ok_or(io::Error::from(io::ErrorKind::NotConnected)))
    });
    // The name is only what HTTP/2 wants to hear: the stream is there already.
    Endpoint::from_static("http://localhost").connect_with_connector(once).await
}

/// The stream, and what ends with it.
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

async fn ask<T>(
    settings: &Settings,
    gone: &AtomicBool,
    ended: &mut watch::Receiver<()>,
    question: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, Error> {
    let answer = within(settings, async {
        let mut question = pin!(caught(question));
        tokio::select! {
            biased;
            answer = &mut question => Ok(answer),
            _ = ended.changed() => tokio::time::timeout(LAST_WORDS, question).await.map_err(|_| Error::lost(&settings.socket)),
        }
    });
    let answer = answer.await?;
    let Some(answer) = answer else {
        return Err(Error::Malformed { socket: settings.socket.clone(), source: Malformed::Headers });
    };
    answer
        .map(tonic::Response::into_inner)
        .map_err(|status| Error::asking(&settings.socket, status, gone.load(Ordering::Relaxed)))
}

async fn within<T>(settings: &Settings, step: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let limit: Duration = settings.timeout;
    let late = |_| Error::Late { socket: settings.socket.clone(), limit };
    tokio::time::timeout(limit, step).await.map_err(late)?
}

/// `None` where the future panics. tonic does on error details that are not base64, and the kubelet would be followed no more.
async fn caught<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    std::future::poll_fn(move |context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(value)) => Poll::Ready(Some(value)),
        Err(_) => Poll::Ready(None),
    })
    .await
}
