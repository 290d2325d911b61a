//! One connection to the kubelet, and the two questions it answers.
//!
//! Invariant: every step is over within the limit. A connection lasts for one round: a kubelet that starts again replaces
//! its socket, and whoever keeps a connection finds out by an error.

use std::future::{Future, ready};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
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

/// A connection.
pub(super) struct Kubelet<'a> {
    settings: &'a Settings,
    client: PodResourcesListerClient<Channel>,
    /// Whether the connection is gone.
    gone: Arc<AtomicBool>,
}

impl<'a> Kubelet<'a> {
    /// Connects to whoever listens at the path now.
    pub(super) async fn connect(settings: &'a Settings) -> Result<Self, Error> {
        let gone = Arc::new(AtomicBool::new(false));
        let channel = within(settings, async {
            let stream = UnixStream::connect(&settings.socket).await;
            let stream = stream.map_err(|error| Error::connecting(&settings.socket, error))?;
            open(stream, &gone).await.map_err(|error| Error::shaking_hands(&settings.socket, error))
        });
        let client = PodResourcesListerClient::new(channel.await?).max_decoding_message_size(LONGEST_ANSWER);
        Ok(Self { settings, client, gone })
    }

    /// The devices that containers hold.
    pub(super) async fn allocated(&mut self) -> Result<Vec<Allocation>, Error> {
        let answer = ask(self.settings, &self.gone, self.client.list(ListPodResourcesRequest {})).await?;
        Ok(answer::allocated(&answer))
    }

    /// The devices that can be handed out; [`Error::Refused`] from a kubelet that does not tell.
    pub(super) async fn allocatable(&mut self) -> Result<Vec<AllocatedDevice>, Error> {
        let question = self.client.get_allocatable_resources(AllocatableResourcesRequest {});
        Ok(answer::allocatable(&ask(self.settings, &self.gone, question).await?))
    }
}

/// HTTP/2 over the one stream. Who asks for a second one has lost the first: that is noted, and the next round connects anew.
async fn open(stream: UnixStream, gone: &Arc<AtomicBool>) -> Result<Channel, tonic::transport::Error> {
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

async fn ask<T>(
    settings: &Settings,
    gone: &AtomicBool,
    question: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, Error> {
    let answer = within(settings, async { Ok(caught(question).await) }).await?;
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
