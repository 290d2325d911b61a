//! The receiver of Alertmanager's notices: a webhook on the loopback interface that keeps every alert in order of
//! arrival.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use serde_json::Value;

use crate::connections::Double;

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

/// The webhook. It stops when this value is dropped.
pub(crate) struct Receiver {
    server: Double,
    received: Arc<Mutex<Vec<Notice>>>,
}

impl Receiver {
    pub(crate) fn start() -> Self {
        let received = Arc::<Mutex<Vec<Notice>>>::default();
        let shared = received.clone();
        let answer = move |request: Request<Incoming>| {
            let received = shared.clone();
            async move {
                let body = request.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
                let notices = read(&body);
                let status = if notices.is_some() { 200 } else { 400 };
                received.lock().unwrap().extend(notices.unwrap_or_default());
                Response::builder().status(status).body(Empty::<Bytes>::new()).unwrap()
            }
        };
        Self { server: Double::start(None, answer), received }
    }

    pub(crate) fn url(&self) -> String {
        self.server.url()
    }

    /// Every notice so far, in order.
    pub(crate) fn notices(&self) -> Vec<Notice> {
        self.received.lock().unwrap().clone()
    }
}

/// The alerts of a message. One that is not from Alertmanager is refused; its alert is then missing, and the test fails.
fn read(body: &[u8]) -> Option<Vec<Notice>> {
    let message: Value = serde_json::from_slice(body).ok()?;
    message.get("alerts")?.as_array()?.iter().map(Notice::read).collect()
}
