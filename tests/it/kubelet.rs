//! A test double for the kubelet's pod-resources service: a real gRPC server on a real unix socket, on its own threads.
//!
//! It responds with bytes, so a response can be anything; [`List`] and [`Allocatable`] build correct ones.

use std::convert::Infallible;
use std::future::{Future, pending};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Bytes, Frame};
pub(crate) use pod_resources::internals::{
    AllocatableResourcesResponse as Allocatable, CdiDevice, ClaimResource, ContainerDevices as Devices,
    ContainerResources, DynamicResource, ListPodResourcesResponse as List, PodResources as Pod,
};
use prost::Message;
use tokio::runtime::Runtime;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;
use tonic::{Code, Status};

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

impl Service<http::Request<Body>> for Lister {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

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
            let _ = question.into_body().collect().await;
            Ok(match reply {
                Reply::Bytes(bytes) => message(&bytes),
                Reply::Late(wait, bytes) => {
                    tokio::time::sleep(wait).await;
                    message(&bytes)
                }
                Reply::Status(code, words) => Status::new(code, words).into_http(),
                Reply::BadDetails => {
                    let mut answer = Status::new(Code::Internal, "").into_http::<Body>();
                    answer.headers_mut().insert("grpc-status-details-bin", http::HeaderValue::from_static("!"));
                    answer
                }
                Reply::Never => pending().await,
            })
        })
    }
}

/// A response with one message: it is not compressed (0), its length, its bytes, and then the status of success.
fn message(bytes: &[u8]) -> http::Response<Body> {
    let length = u32::try_from(bytes.len()).unwrap().to_be_bytes();
    let status = http::HeaderMap::from_iter([("grpc-status".parse().unwrap(), "0".parse().unwrap())]);
    let frames = [Frame::data(Bytes::from([&[0], &length[..], bytes].concat())), Frame::trailers(status)];
    let body = StreamBody::new(futures_util::stream::iter(frames.map(Ok::<_, Infallible>)));
    let answer = http::Response::builder().header("content-type", "application/grpc").header("x-test", "double");
    answer.body(Body::new(body)).unwrap()
}

/// Devices of one kind.
pub(crate) fn devices(resource: &str, ids: &[&str]) -> Devices {
    let device_ids = ids.iter().map(|&id| id.to_owned()).collect();
    Devices { resource_name: resource.to_owned(), device_ids }
}

/// A pod with one container, `main`.
pub(crate) fn pod(namespace: &str, name: &str, devices: Vec<Devices>) -> Pod {
    let containers = vec![ContainerResources { name: "main".to_owned(), devices, ..Default::default() }];
    Pod { name: name.to_owned(), namespace: namespace.to_owned(), containers }
}

/// The driver and the pool of every claimed device.
pub(crate) const DRIVER: &str = "gpu.nvidia.com";
pub(crate) const POOL: &str = "node-1";

/// A claim of the namespace with these devices.
pub(crate) fn claim(namespace: &str, name: &str, devices: &[&str]) -> DynamicResource {
    let resource = |device: &&str| ClaimResource {
        driver_name: DRIVER.to_owned(),
        pool_name: POOL.to_owned(),
        device_name: (*device).to_owned(),
        ..ClaimResource::default()
    };
    let claim_resources = devices.iter().map(resource).collect();
    DynamicResource { claim_name: name.to_owned(), claim_namespace: namespace.to_owned(), claim_resources }
}

/// A pod whose containers use claims.
pub(crate) fn claiming(namespace: &str, name: &str, containers: &[(&str, &[DynamicResource])]) -> Pod {
    let container = |(name, claims): &(&str, &[DynamicResource])| {
        let (name, dynamic_resources) = ((*name).to_owned(), claims.to_vec());
        ContainerResources { name, dynamic_resources, ..ContainerResources::default() }
    };
    let containers = containers.iter().map(container).collect();
    Pod { name: name.to_owned(), namespace: namespace.to_owned(), containers }
}
