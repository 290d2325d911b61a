//! A test double for the kubelet's pod-resources service: a real gRPC server on a real unix socket, on its own threads.
//!
//! It responds with bytes, so a response can be anything; [`List`] and [`Allocatable`] build correct ones, including
//! fields that the exporter does not read.

use std::convert::Infallible;
use std::future::{Future, pending};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use prost::Message;
use prost::bytes::{Buf, BufMut};
use tokio::runtime::Runtime;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::{Service, http};
use tonic::metadata::MetadataMap;
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::{Code, Request, Response, Status};

/// The response to a request.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    /// A message, valid or not.
    Bytes(Vec<u8>),
    /// A message, after a delay.
    Late(Duration, Vec<u8>),
    /// An error.
    Status(Code, String),
    /// An error whose details are not base64, although they should be.
    BadDetails,
    /// No response at all.
    Never,
}

/// A kubelet that listens until it is dropped, and leaves its socket behind, as a killed kubelet does.
pub(crate) struct Kubelet {
    runtime: Option<Runtime>,
    socket: PathBuf,
    state: Arc<State>,
}

struct State {
    list: Mutex<Reply>,
    allocatable: Mutex<Reply>,
    lists: AtomicU64,
    allocatables: AtomicU64,
}

impl Kubelet {
    /// Listens at the path, in place of any other listener, with a response to `List` and no allocatable devices.
    pub(crate) fn start(socket: &Path, list: &List) -> Self {
        let listener = bind(socket);
        listener.set_nonblocking(true).unwrap();
        let state = Arc::new(State {
            list: Mutex::new(Reply::Bytes(list.encode_to_vec())),
            allocatable: Mutex::new(Reply::Status(Code::Unimplemented, "unknown method".into())),
            lists: AtomicU64::new(0),
            allocatables: AtomicU64::new(0),
        });
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let lister = Lister(Arc::clone(&state));
        runtime.spawn(async move {
            let connections = UnixListenerStream::new(tokio::net::UnixListener::from_std(listener).unwrap());
            tonic::transport::Server::builder().add_service(lister).serve_with_incoming(connections).await
        });
        Self { runtime: Some(runtime), socket: socket.to_owned(), state }
    }

    /// From now on this is the response to `List`.
    pub(crate) fn list(&self, list: &List) {
        self.reply_to_list(Reply::Bytes(list.encode_to_vec()));
    }

    /// From now on this is the reply to `List`.
    pub(crate) fn reply_to_list(&self, reply: Reply) {
        *self.state.list.lock().unwrap() = reply;
    }

    /// From now on this is the response to `GetAllocatableResources`.
    pub(crate) fn allocatable(&self, allocatable: &Allocatable) {
        self.reply_to_allocatable(Reply::Bytes(allocatable.encode_to_vec()));
    }

    /// From now on this is the reply to `GetAllocatableResources`.
    pub(crate) fn reply_to_allocatable(&self, reply: Reply) {
        *self.state.allocatable.lock().unwrap() = reply;
    }

    /// How many times `List` was requested.
    pub(crate) fn lists(&self) -> u64 {
        self.state.lists.load(Ordering::Relaxed)
    }

    /// How many times `GetAllocatableResources` was requested.
    pub(crate) fn allocatables(&self) -> u64 {
        self.state.allocatables.load(Ordering::Relaxed)
    }

    /// Shuts down as a kubelet does when it is stopped: its socket is removed.
    pub(crate) fn stop(self) {
        std::fs::remove_file(&self.socket).unwrap();
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

/// Listens at the path in place of any other listener, without a gap between them.
pub(crate) fn bind(socket: &Path) -> UnixListener {
    let beside = socket.with_extension("new");
    let listener = UnixListener::bind(&beside).unwrap();
    std::fs::rename(beside, socket).unwrap();
    listener
}

/// The service that tonic's server calls.
#[derive(Clone)]
struct Lister(Arc<State>);

impl NamedService for Lister {
    const NAME: &'static str = "v1.PodResourcesLister";
}

type Later<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl Service<http::Request<Body>> for Lister {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Later<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, question: http::Request<Body>) -> Self::Future {
        let reply = match question.uri().path() {
            "/v1.PodResourcesLister/List" => {
                self.0.lists.fetch_add(1, Ordering::Relaxed);
                self.0.list.lock().unwrap().clone()
            }
            "/v1.PodResourcesLister/GetAllocatableResources" => {
                self.0.allocatables.fetch_add(1, Ordering::Relaxed);
                self.0.allocatable.lock().unwrap().clone()
            }
            other => Reply::Status(Code::Unimplemented, other.to_owned()),
        };
        Box::pin(async move {
            let mut answer = match reply {
                Reply::BadDetails => {
                    let status = Status::with_metadata(Code::Internal, "", MetadataMap::new());
                    let mut answer = status.into_http::<Body>();
                    answer.headers_mut().insert("grpc-status-details-bin", http::HeaderValue::from_static("!"));
                    return Ok(answer);
                }
                reply => Grpc::new(Raw).unary(Answering(reply), question).await,
            };
            answer.headers_mut().insert("x-test", http::HeaderValue::from_static("double"));
            Ok(answer)
        })
    }
}

struct Answering(Reply);

impl UnaryService<()> for Answering {
    type Response = Vec<u8>;
    type Future = Later<Result<Response<Vec<u8>>, Status>>;

    fn call(&mut self, _: Request<()>) -> Self::Future {
        let reply = self.0.clone();
        Box::pin(async move {
            match reply {
                Reply::Bytes(bytes) => Ok(Response::new(bytes)),
                Reply::Late(wait, bytes) => {
                    tokio::time::sleep(wait).await;
                    Ok(Response::new(bytes))
                }
                Reply::Status(code, words) => Err(Status::new(code, words)),
                Reply::BadDetails | Reply::Never => pending().await,
            }
        })
    }
}

/// A codec that writes bytes as they are and accepts any request.
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = ();
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, bytes: Vec<u8>, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put_slice(&bytes);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = ();
    type Error = Status;

    fn decode(&mut self, question: &mut DecodeBuf<'_>) -> Result<Option<()>, Status> {
        question.advance(question.remaining());
        Ok(Some(()))
    }
}

// ---- a kubelet's messages, with the names and numbers from its API
// ---------------------------------------------------------

/// The response to `List`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct List {
    #[prost(message, repeated, tag = "1")]
    pub(crate) pods: Vec<Pod>,
}

/// The response to `GetAllocatableResources`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Allocatable {
    #[prost(message, repeated, tag = "1")]
    pub(crate) devices: Vec<Devices>,
    #[prost(int64, repeated, tag = "2")]
    pub(crate) cpu_ids: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) memory: Vec<Memory>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Pod {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) namespace: String,
    #[prost(message, repeated, tag = "3")]
    pub(crate) containers: Vec<Container>,
    /// A field that the API does not have; a later version may have one.
    #[prost(bytes = "vec", tag = "1000")]
    pub(crate) future: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Container {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) devices: Vec<Devices>,
    #[prost(int64, repeated, tag = "3")]
    pub(crate) cpu_ids: Vec<i64>,
    #[prost(message, repeated, tag = "4")]
    pub(crate) memory: Vec<Memory>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) dynamic_resources: Vec<DynamicResource>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Devices {
    #[prost(string, tag = "1")]
    pub(crate) resource_name: String,
    #[prost(string, repeated, tag = "2")]
    pub(crate) device_ids: Vec<String>,
    #[prost(message, optional, tag = "3")]
    pub(crate) topology: Option<Topology>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Topology {
    #[prost(message, repeated, tag = "1")]
    pub(crate) nodes: Vec<NumaNode>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct NumaNode {
    #[prost(int64, tag = "1")]
    pub(crate) id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Memory {
    #[prost(string, tag = "1")]
    pub(crate) memory_type: String,
    #[prost(uint64, tag = "2")]
    pub(crate) size: u64,
    #[prost(message, optional, tag = "3")]
    pub(crate) topology: Option<Topology>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DynamicResource {
    #[prost(string, tag = "2")]
    pub(crate) claim_name: String,
    #[prost(string, tag = "3")]
    pub(crate) claim_namespace: String,
    #[prost(message, repeated, tag = "4")]
    pub(crate) claim_resources: Vec<ClaimResource>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ClaimResource {
    #[prost(message, repeated, tag = "1")]
    pub(crate) cdi_devices: Vec<CdiDevice>,
    #[prost(string, tag = "2")]
    pub(crate) driver_name: String,
    #[prost(string, tag = "3")]
    pub(crate) pool_name: String,
    #[prost(string, tag = "4")]
    pub(crate) device_name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct CdiDevice {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
}

/// Devices of one kind.
pub(crate) fn devices(resource: &str, ids: &[&str]) -> Devices {
    let device_ids = ids.iter().map(|&id| id.to_owned()).collect();
    Devices { resource_name: resource.to_owned(), device_ids, topology: None }
}

/// A pod with one container, `main`.
pub(crate) fn pod(namespace: &str, name: &str, devices: Vec<Devices>) -> Pod {
    let main = Container { name: "main".to_owned(), devices, ..Container::default() };
    Pod { name: name.to_owned(), namespace: namespace.to_owned(), containers: vec![main], future: Vec::new() }
}
