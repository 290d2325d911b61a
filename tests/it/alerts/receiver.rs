//! The receiver of Alertmanager's notices: a webhook on the loopback interface that keeps every alert in order of
//! arrival.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

/// One alert in a notification.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Notice {
    pub(crate) firing: bool,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
}

impl Notice {
    fn read(alert: &Value) -> Option<Self> {
        let texts = |name: &str| -> Option<BTreeMap<String, String>> {
            let map = alert.get(name)?.as_object()?;
            map.iter().map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
        };
        let firing = match alert.get("status")?.as_str()? {
            "firing" => true,
            "resolved" => false,
            _ => return None,
        };
        Some(Self { firing, labels: texts("labels")?, annotations: texts("annotations")? })
    }

    /// The label's value; empty if there is no such label.
    pub(crate) fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }

    pub(crate) fn name(&self) -> &str {
        self.label("alertname")
    }
}

type Received = Arc<Mutex<Vec<Notice>>>;

/// The webhook. It stops when this value is dropped.
pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    received: Received,
    _runtime: Runtime,
}

impl Receiver {
    pub(crate) fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let received = Received::default();
        let router = Router::new().route("/", post(take)).with_state(received.clone());
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async move { axum::serve(listener, router).await });
        Self { address, received, _runtime: runtime }
    }

    /// Every notice so far, in order.
    pub(crate) fn notices(&self) -> Vec<Notice> {
        self.received.lock().unwrap().clone()
    }
}

/// A body that is not from Alertmanager is refused; its alert is then missing, and the test fails.
async fn take(State(received): State<Received>, body: String) -> StatusCode {
    let read = || -> Option<Vec<Notice>> {
        let message: Value = serde_json::from_str(&body).ok()?;
        message.get("alerts")?.as_array()?.iter().map(Notice::read).collect()
    };
    match read() {
        Some(notices) => {
            received.lock().unwrap().extend(notices);
            StatusCode::OK
        }
        None => StatusCode::BAD_REQUEST,
    }
}
