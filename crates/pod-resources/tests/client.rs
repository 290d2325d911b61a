//! The client over a real unix socket. The exporter's `tests/it/pod_resources.rs` does the same with answers of every
//! kind, broken ones included, and with a kubelet that restarts.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use pod_resources::internals::{
    ClaimResource, ContainerDevices, ContainerResources, DynamicResource, ListPodResourcesResponse, PodResources,
};
use pod_resources::{Allocation, DeviceName, Error, Kubelet};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

const GPU: &str = "GPU-b4c0ffee-0123-4567-89ab-0123456789ab";
/// Longer than any answer takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// A kubelet that lists one container with two GPUs, and no allocatable devices.
#[derive(Clone)]
struct Double;

impl NamedService for Double {
    const NAME: &'static str = "v1.PodResourcesLister";
}

impl Service<http::Request<Body>> for Double {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async move {
            match request.uri().path() {
                "/v1.PodResourcesLister/List" => Ok(Grpc::new(ProstCodec::default()).unary(List, request).await),
                _ => Ok(Status::unimplemented("no such method").into_http()),
            }
        })
    }
}

struct List;

impl UnaryService<()> for List {
    type Response = ListPodResourcesResponse;
    type Future = Ready<Result<Response<Self::Response>, Status>>;

    fn call(&mut self, _: Request<()>) -> Self::Future {
        let device_ids = ["1", GPU].map(str::to_owned).to_vec();
        let devices = vec![ContainerDevices { resource_name: "nvidia.com/gpu".to_owned(), device_ids }];
        let claim = DynamicResource {
            claim_name: "notebook-7-gpu-x2k4f".to_owned(),
            claim_namespace: "team-b".to_owned(),
            claim_resources: vec![ClaimResource {
                driver_name: "gpu.nvidia.com".to_owned(),
                pool_name: "node-1".to_owned(),
                device_name: "gpu-3".to_owned(),
                ..ClaimResource::default()
            }],
        };
        let main = ContainerResources { name: "main".to_owned(), devices, dynamic_resources: vec![claim] };
        let containers = vec![main];
        let pod = PodResources { name: "notebook-7".to_owned(), namespace: "team-b".to_owned(), containers };
        ready(Ok(Response::new(ListPodResourcesResponse { pod_resources: vec![pod] })))
    }
}

/// Runs a test with the path of a socket that does not exist yet.
fn with_socket<F: Future<Output = ()>>(test: impl FnOnce(PathBuf) -> F) {
    let folder = TempDir::new().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(test(folder.path().join("kubelet.sock")));
}

fn serve(socket: &Path) {
    let connections = UnixListenerStream::new(UnixListener::bind(socket).unwrap());
    tokio::spawn(Server::builder().add_service(Double).serve_with_incoming(connections));
}

#[test]
fn allocated_devices_have_their_container_and_come_in_a_fixed_order() {
    with_socket(async |socket| {
        serve(&socket);
        let allocated = Kubelet::connect(&socket, PATIENCE).await.unwrap().allocated().await.unwrap();
        let line = |Allocation { holder, device }: &Allocation| {
            let names = [&*holder.namespace, &*holder.pod, &*holder.container].join("/");
            (names, device.device.clone())
        };
        let holder = || "team-b/notebook-7/main".to_owned();
        let expected =
            [(holder(), DeviceName::Gpu(GPU.to_owned())), (holder(), DeviceName::Index { gpu: 1, mig: None })];
        assert_eq!(allocated.devices.iter().map(line).collect::<Vec<_>>(), expected);
        let [claimed] = &allocated.claimed[..] else { panic!("{allocated:?}") };
        assert_eq!((&*claimed.claim.name, &*claimed.device.device), ("notebook-7-gpu-x2k4f", "gpu-3"));
    });
}

#[test]
fn a_kubelet_without_the_second_request_refuses_it_and_answers_the_first_one_again() {
    with_socket(async |socket| {
        serve(&socket);
        let mut kubelet = Kubelet::connect(&socket, PATIENCE).await.unwrap();
        let refused = kubelet.allocatable().await.unwrap_err();
        assert!(matches!(&refused, Error::Refused { code, .. } if code == "Unimplemented"), "{refused:?}");
        assert!(refused.to_string().contains("answers Unimplemented (no such method)"), "{refused}");
        assert_eq!(kubelet.allocated().await.unwrap().devices.len(), 2);
    });
}

#[test]
fn a_path_without_a_socket_is_absent() {
    with_socket(async |socket| {
        let error = Kubelet::connect(&socket, PATIENCE).await.unwrap_err();
        assert!(matches!(&error, Error::Absent(path, _) if *path == socket), "{error:?}");
    });
}

#[test]
fn a_socket_whose_process_ended_is_closed() {
    with_socket(async |socket| {
        drop(UnixListener::bind(&socket).unwrap());
        let error = Kubelet::connect(&socket, PATIENCE).await.unwrap_err();
        assert!(matches!(error, Error::Closed { .. }), "{error:?}");
    });
}

#[test]
fn a_silent_peer_is_late_after_the_limit() {
    with_socket(async |socket| {
        let _silent = UnixListener::bind(&socket).unwrap();
        let begin = Instant::now();
        let limit = Duration::from_millis(100);
        let answer = match Kubelet::connect(&socket, limit).await {
            Ok(mut kubelet) => kubelet.allocated().await.map(|_| ()),
            Err(error) => Err(error),
        };
        assert!(matches!(answer, Err(Error::Late { .. })), "{answer:?}");
        assert!((limit..PATIENCE).contains(&begin.elapsed()));
    });
}
