//! A test double for the Kubernetes API server: it lists pods and ResourceSlices in pages, lets clients watch them and read single
//! ResourceClaims over HTTP or HTTPS, and simulates every failure that a test requests. It records each request, so that a test can check what is
//! never requested.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::{Request, Response};
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::connections;
use crate::web_config::pki;

/// How long a test waits for anything. Generous: the machine may be busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `holds` returns true.
pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// What the server does instead of answering correctly.
#[derive(Clone)]
pub(crate) enum Trouble {
    /// This status and text, with `Retry-After` if it is set.
    Status(u16, String, Option<u32>),
    /// Status 200 with this text.
    Text(String),
    /// Status 200 with this text repeated endlessly.
    Flood(Bytes),
    /// Status 200 with this page of a list and a token for another one: each time another token, or the same.
    Pages { page: Value, repeated: bool },
    /// Accepts the request and never responds.
    Silence,
}

/// A request.
#[derive(Debug, Clone)]
pub(crate) struct RecordedRequest {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) query: HashMap<String, String>,
    pub(crate) token: Option<String>,
    pub(crate) at: Instant,
}

impl RecordedRequest {
    pub(crate) fn is_watch(&self) -> bool {
        self.query.get("watch").is_some_and(|watch| watch == "true")
    }
}

/// By namespace and name.
type Pods = BTreeMap<(String, String), Value>;

#[derive(Default)]
struct State {
    pods: Pods,
    version: u64,
    /// Every event so far: its version, the pod and the line.
    history: Vec<(u64, Value, String)>,
    /// A watch that starts before this version is answered with 410.
    oldest: u64,
    gone_as_status: bool,
    page: usize,
    /// How many more list requests are answered by another server, and the version and the pods that it has.
    behind: Option<(u32, u64, Pods)>,
    token: Option<String>,
    list: Option<Trouble>,
    watch: Option<Trouble>,
    /// How requests for slices and for claims are answered instead.
    slices: Option<Trouble>,
    claim: Option<Trouble>,
    /// The claims by their paths.
    claims: BTreeMap<String, Value>,
    watches: Vec<(String, UnboundedSender<Piece>)>,
    requests: Vec<RecordedRequest>,
}

enum Piece {
    Text(Bytes),
    /// The connection breaks.
    Cut,
}

type Body = UnsyncBoxBody<Bytes, io::Error>;

/// The double. It runs in the test's runtime until [`ApiServer::stop`] is called or the double is dropped.
pub(crate) struct ApiServer {
    pub(crate) address: SocketAddr,
    state: Arc<Mutex<State>>,
    tls: Option<TlsAcceptor>,
    running: Option<JoinSet<()>>,
}

impl ApiServer {
    /// Speaks plain HTTP on a free loopback port.
    pub(crate) async fn start() -> Self {
        Self::with(None).await
    }

    /// Speaks TLS with a certificate issued by this authority.
    pub(crate) async fn start_tls(authority: &Authority) -> Self {
        Self::with(Some(authority.acceptor())).await
    }

    async fn with(tls: Option<TlsAcceptor>) -> Self {
        let address = "127.0.0.1:0".parse().unwrap();
        let mut server = Self { address, state: Arc::default(), tls, running: None };
        server.resume().await;
        server
    }

    /// Starts listening; after [`ApiServer::stop`], on the same address as before.
    pub(crate) async fn resume(&mut self) {
        let listener = TcpListener::bind(self.address).await.unwrap();
        self.address = listener.local_addr().unwrap();
        let (state, tls) = (self.state.clone(), self.tls.clone());
        let mut running = JoinSet::new();
        let answer = move |request| {
            let state = state.clone();
            async move { reply(request, &state).await }
        };
        running.spawn(connections::serve(listener, tls, answer));
        self.running = Some(running);
    }

    /// Stops listening, and breaks every connection.
    pub(crate) async fn stop(&mut self) {
        if let Some(mut running) = self.running.take() {
            running.shutdown().await;
        }
        self.state().watches.clear();
    }

    pub(crate) fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Creates or changes a pod.
    pub(crate) fn put(&self, pod: Value) {
        let mut state = self.state();
        let known = state.pods.contains_key(&key(&pod));
        state.version += 1;
        let pod = stamped(pod, state.version);
        state.pods.insert(key(&pod), pod.clone());
        state.send_event(if known { "MODIFIED" } else { "ADDED" }, &pod);
    }

    /// Deletes a pod.
    pub(crate) fn delete(&self, namespace: &str, name: &str) {
        let mut state = self.state();
        let pod = state.pods.remove(&(namespace.to_owned(), name.to_owned())).unwrap();
        state.version += 1;
        let pod = stamped(pod, state.version);
        state.send_event("DELETED", &pod);
    }

    /// Deletes a pod without an event.
    pub(crate) fn delete_unseen(&self, namespace: &str, name: &str) {
        let mut state = self.state();
        state.pods.remove(&(namespace.to_owned(), name.to_owned())).unwrap();
        state.version += 1;
    }

    /// Sends every watch a bookmark. Returns its version.
    pub(crate) fn bookmark(&self) -> u64 {
        let mut state = self.state();
        state.version += 1;
        let version = state.version;
        let metadata = json!({"resourceVersion": version.to_string()});
        let line = json!({"type": "BOOKMARK", "object": {"kind": "Pod", "apiVersion": "v1", "metadata": metadata}});
        state.send_all(format!("{line}\n").as_bytes());
        version
    }

    /// Sends these bytes to every watch.
    pub(crate) fn send(&self, bytes: &[u8]) {
        self.state().send_all(bytes);
    }

    /// Breaks the connection of every watch.
    pub(crate) fn cut(&self) {
        for (_, watch) in self.state().watches.drain(..) {
            let _ = watch.send(Piece::Cut);
        }
    }

    /// Ends every watch, as a server does when a watch reaches its time limit.
    pub(crate) fn end_watches(&self) {
        self.state().watches.clear();
    }

    /// Forgets all history: a watch from any version seen so far is answered with 410, as an event or as a status.
    pub(crate) fn expire(&self, as_status: bool) {
        let mut state = self.state();
        state.version += 1;
        state.oldest = state.version;
        state.gone_as_status = as_status;
        state.history.clear();
    }

    /// Restores the store from an empty backup: versions are counted from the beginning again.
    pub(crate) fn restore(&self) {
        let mut state = self.state();
        (state.version, state.oldest) = (0, 0);
        state.history.clear();
        state.pods.clear();
    }

    /// Sets how list requests are answered from now on.
    pub(crate) fn list_with(&self, trouble: Option<Trouble>) {
        self.state().list = trouble;
    }

    /// Sets how watch requests are answered from now on.
    pub(crate) fn watch_with(&self, trouble: Option<Trouble>) {
        self.state().watch = trouble;
    }

    /// Sets how requests for slices are answered from now on.
    pub(crate) fn slices_with(&self, trouble: Option<Trouble>) {
        self.state().slices = trouble;
    }

    /// Sets how requests for claims are answered from now on.
    pub(crate) fn claim_with(&self, trouble: Option<Trouble>) {
        self.state().claim = trouble;
    }

    /// Creates or changes a claim.
    pub(crate) fn put_claim(&self, claim: Value) {
        let (namespace, name) = key(&claim);
        let path = format!("/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}");
        self.state().claims.insert(path, claim);
    }

    /// Another server answers the next `lists` list requests. That server lacks every change after this call.
    pub(crate) fn fall_behind(&self, lists: u32) {
        let mut state = self.state();
        state.behind = Some((lists, state.version, state.pods.clone()));
    }

    /// Lists in pages of `size` pods.
    pub(crate) fn page(&self, size: usize) {
        self.state().page = size;
    }

    /// Answers with 401 unless the request has this token.
    pub(crate) fn accept_token(&self, token: &str) {
        self.state().token = Some(token.to_owned());
    }

    /// Every request so far.
    pub(crate) fn requests(&self) -> Vec<RecordedRequest> {
        self.state().requests.clone()
    }

    pub(crate) fn lists(&self) -> Vec<RecordedRequest> {
        self.requests().into_iter().filter(|request| !request.is_watch()).collect()
    }

    pub(crate) fn watches(&self) -> Vec<RecordedRequest> {
        self.requests().into_iter().filter(RecordedRequest::is_watch).collect()
    }

    /// How many watches are open.
    pub(crate) fn open_watches(&self) -> usize {
        let mut state = self.state();
        state.watches.retain(|(_, watch)| !watch.is_closed());
        state.watches.len()
    }
}

impl State {
    fn send_event(&mut self, kind: &str, pod: &Value) {
        let line = format!("{}\n", json!({"type": kind, "object": pod}));
        self.watches.retain(|(selector, watch)| {
            !selects(selector, pod) || watch.send(Piece::Text(line.clone().into())).is_ok()
        });
        self.history.push((self.version, pod.clone(), line));
    }

    fn send_all(&mut self, bytes: &[u8]) {
        self.watches.retain(|(_, watch)| watch.send(Piece::Text(Bytes::copy_from_slice(bytes))).is_ok());
    }

    fn list(&mut self, kind: &str, query: &HashMap<String, String>) -> Response<Body> {
        let selector = selector(kind, query);
        let (version, pods) = match &mut self.behind {
            Some((lists, version, pods)) if *lists > 0 => {
                *lists -= 1;
                (*version, &*pods)
            }
            _ => (self.version, &self.pods),
        };
        let chosen = pods.values().filter(|pod| selects(&selector, pod));
        let from: usize =
            query.get("continue").map_or(0, |token| token.strip_prefix("from-").unwrap().parse().unwrap());
        let chosen: Vec<_> = chosen.skip(from).collect();
        let page = if self.page == 0 { chosen.len() } else { self.page.min(chosen.len()) };
        let more = if page < chosen.len() { format!("from-{}", from + page) } else { String::new() };
        let metadata = json!({"resourceVersion": version.to_string(), "continue": more});
        let list = json!({"kind": format!("{kind}List"), "metadata": metadata, "items": chosen[..page]});
        answer(200, list.to_string())
    }

    fn watch(&mut self, kind: &str, query: &HashMap<String, String>) -> Response<Body> {
        let from: u64 = query["resourceVersion"].parse().unwrap();
        if from < self.oldest {
            let status = status(410, "too old resource version");
            return if self.gone_as_status {
                answer(410, status)
            } else {
                answer(200, format!("{{\"type\":\"ERROR\",\"object\":{status}}}\n"))
            };
        }
        let selector = selector(kind, query);
        let (sender, receiver) = unbounded_channel();
        for (_, _, line) in self.history.iter().filter(|(version, pod, _)| *version > from && selects(&selector, pod)) {
            sender.send(Piece::Text(line.clone().into())).unwrap();
        }
        self.watches.push((selector, sender));
        Response::new(streamed(receiver))
    }
}

/// A pod on the node `node-1`, with a container for each (name, id with the runtime's prefix).
pub(crate) fn pod(namespace: &str, name: &str, containers: &[(&str, &str)]) -> Value {
    let statuses: Vec<_> = containers
        .iter()
        .map(|(name, id)| json!({"name": name, "containerID": id, "state": {"running": {}}, "lastState": {}}))
        .collect();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "labels": {"app": name}, "uid": format!("uid-of-{name}")},
        "spec": {"nodeName": "node-1", "containers": [{"name": "main", "image": "x", "env": [{"name": "A", "value": "b"}]}]},
        "status": {"phase": "Running", "containerStatuses": statuses},
    })
}

/// The API server's description of a failure.
pub(crate) fn status(code: u16, message: &str) -> String {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}).to_string()
}

/// The selector of a request, with a term for the kind.
fn selector(kind: &str, query: &HashMap<String, String>) -> String {
    let fields = query.get("fieldSelector").map(String::as_str).unwrap_or_default();
    format!("kind={kind},{fields}")
}

/// Whether a selector selects an object. The selector has terms for the kind, the node and the phase.
fn selects(selector: &str, pod: &Value) -> bool {
    selector.split(',').filter(|term| !term.is_empty()).all(|term| {
        if let Some(kind) = term.strip_prefix("kind=") {
            return pod["kind"] == kind;
        }
        let other = term.strip_prefix("status.phase!=").map(|phase| pod["status"]["phase"] != phase);
        other.unwrap_or_else(|| term.strip_prefix("spec.nodeName=").is_some_and(|node| pod["spec"]["nodeName"] == node))
    })
}

fn key(pod: &Value) -> (String, String) {
    let text = |name: &str| pod["metadata"][name].as_str().unwrap_or_default().to_owned();
    (text("namespace"), text("name"))
}

fn stamped(mut pod: Value, version: u64) -> Value {
    pod["metadata"]["resourceVersion"] = version.to_string().into();
    pod
}

async fn reply(request: Request<Incoming>, state: &Mutex<State>) -> Response<Body> {
    let recorded = record(&request);
    let is_claim = recorded.path.contains("/resourceclaims/");
    let kind = match recorded.path.as_str() {
        "/api/v1/pods" => Some("Pod"),
        "/apis/resource.k8s.io/v1/resourceslices" => Some("ResourceSlice"),
        _ => None,
    };
    let (trouble, known) = {
        let mut state = state.lock().unwrap();
        state.requests.push(recorded.clone());
        let known = state.token.is_none() || state.token == recorded.token;
        let trouble = match kind {
            _ if is_claim => &state.claim,
            Some("ResourceSlice") => &state.slices,
            _ if recorded.is_watch() => &state.watch,
            _ => &state.list,
        };
        (trouble.clone(), known)
    };
    if !known {
        return answer(401, status(401, "Unauthorized"));
    }
    match trouble {
        Some(Trouble::Silence) => std::future::pending().await,
        Some(Trouble::Text(text)) => answer(200, text),
        Some(Trouble::Pages { mut page, repeated }) => {
            let count = state.lock().unwrap().requests.len();
            page["metadata"]["continue"] = json!(if repeated { "same".to_owned() } else { format!("from-{count}") });
            answer(200, page.to_string())
        }
        Some(Trouble::Flood(piece)) => Response::new(
            StreamBody::new(futures_util::stream::repeat_with(move || Ok(Frame::data(piece.clone())))).boxed_unsync(),
        ),
        Some(Trouble::Status(code, text, after)) => {
            let mut answer = answer(code, text);
            if let Some(after) = after {
                answer.headers_mut().insert("retry-after", after.to_string().parse().unwrap());
            }
            answer
        }
        None => {
            let mut state = state.lock().unwrap();
            match (kind, state.claims.get(&recorded.path)) {
                (Some(kind), _) if recorded.is_watch() => state.watch(kind, &recorded.query),
                (Some(kind), _) => state.list(kind, &recorded.query),
                (None, Some(claim)) => answer(200, claim.to_string()),
                (None, None) => answer(404, status(404, "not found")),
            }
        }
    }
}

fn record(request: &Request<Incoming>) -> RecordedRequest {
    let query = request.uri().query().unwrap_or_default();
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let bearer = request.headers().get("authorization").map(|value| value.to_str().unwrap());
    RecordedRequest {
        method: request.method().to_string(),
        path: request.uri().path().to_owned(),
        query: pairs.map(|(name, value)| (name.to_owned(), plain(value))).collect(),
        token: bearer.map(|value| value.strip_prefix("Bearer ").unwrap().to_owned()),
        at: Instant::now(),
    }
}

/// A selector's value with the escapes removed.
fn plain(value: &str) -> String {
    value.replace("%3D", "=").replace("%2C", ",").replace("%21", "!")
}

fn answer(code: u16, text: String) -> Response<Body> {
    let body = http_body_util::Full::new(Bytes::from(text)).map_err(|never: Infallible| match never {});
    let builder = Response::builder().status(code).header("content-type", "application/json");
    builder.body(body.boxed_unsync()).unwrap()
}

/// A response body made of the pieces as they arrive; the connection breaks at [`Piece::Cut`].
fn streamed(receiver: UnboundedReceiver<Piece>) -> Body {
    let pieces = futures_util::stream::unfold(receiver, |mut receiver| async move {
        let piece = match receiver.recv().await? {
            Piece::Text(text) => Ok(Frame::data(text)),
            Piece::Cut => {
                // Gives hyper time to write the previous pieces.
                tokio::task::yield_now().await;
                Err(io::Error::from(io::ErrorKind::BrokenPipe))
            }
        };
        Some((piece, receiver))
    });
    StreamBody::new(pieces.boxed()).boxed_unsync()
}

/// A certificate authority for one test.
pub(crate) struct Authority(pki::Ca);

impl Authority {
    pub(crate) fn new() -> Self {
        Self(pki::ca("an authority"))
    }

    /// Writes the authority's certificate, as a PEM file.
    pub(crate) fn write(&self, path: &Path) {
        std::fs::write(path, self.0.pem()).unwrap();
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        let key = KeyPair::generate().unwrap();
        let leaf = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap().signed_by(&key, &self.0).unwrap();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = ServerConfig::builder().with_no_client_auth().with_single_cert(vec![leaf.der().clone()], key);
        TlsAcceptor::from(Arc::new(config.unwrap()))
    }
}
