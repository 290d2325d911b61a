//! A double of Prometheus' HTTP API, which records the requests and answers what a test wants.

use std::sync::{Arc, Mutex};

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use tokio_rustls::TlsAcceptor;

use crate::connections;
use crate::web_config::pki::{Pki, open};

/// A request as it arrived.
#[derive(Debug, Clone)]
pub(super) struct Recorded {
    pub(super) method: String,
    pub(super) path: String,
    headers: Vec<(String, String)>,
    parameters: Vec<(String, String)>,
}

impl Recorded {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }

    /// A parameter of the form in the body.
    pub(super) fn parameter(&self, name: &str) -> Option<&str> {
        find(&self.parameters, name)
    }

    /// With a parameter changed, if it has it.
    pub(super) fn with(mut self, name: &str, change: impl Fn(&str) -> String) -> Self {
        self.parameters.iter_mut().filter(|(own, _)| own == name).for_each(|(_, value)| *value = change(value));
        self
    }
}

fn find<'a>(pairs: &'a [(String, String)], name: &str) -> Option<&'a str> {
    pairs.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
}

/// What the double answers.
#[derive(Debug, Clone)]
pub(super) struct Reply {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: String,
}

impl Reply {
    pub(super) fn new(status: u16, kind: &str, body: &str) -> Self {
        Self { status, headers: vec![("content-type", kind.to_owned())], body: body.to_owned() }
    }

    pub(super) fn with(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.chars().filter(|c| !c.is_control()).collect()));
        self
    }

    /// Series with these labels, each with the same value at every time that was asked for.
    pub(super) fn series(request: &Recorded, of: impl Fn(&str) -> Vec<(Value, u64)>) -> Self {
        let number = |name: &str| request.parameter(name).map(|text| text.parse::<u64>().unwrap());
        let found = of(request.parameter("query").unwrap());
        let result: Vec<_> = found
            .into_iter()
            .map(|(labels, value)| {
                let point = |time: u64| json!([time, value.to_string()]);
                match (number("time"), number("start"), number("end"), number("step")) {
                    (Some(time), ..) => json!({"metric": labels, "value": point(time)}),
                    (None, Some(start), Some(end), Some(step)) => {
                        let times = (start..=end).step_by(usize::try_from(step).unwrap());
                        json!({"metric": labels, "values": times.map(point).collect::<Vec<_>>()})
                    }
                    other => panic!("{other:?}"),
                }
            })
            .collect();
        let body = json!({"status": "success", "data": {"resultType": "vector", "result": result}});
        Self::new(200, "application/json", &body.to_string())
    }

    /// The same answer, marked as partial like an answer of VictoriaMetrics.
    pub(super) fn partial(mut self) -> Self {
        self.body = self.body.replacen('{', "{\"isPartial\":true,", 1);
        self
    }

    /// The same answer with a warning.
    pub(super) fn warning(mut self, text: &str) -> Self {
        let mut body: Value = serde_json::from_str(&self.body).unwrap();
        body["warnings"] = json!([text]);
        self.body = body.to_string();
        self
    }
}

/// The double on a free port. It ends with this value.
pub(super) struct Double {
    server: connections::Double,
    requests: Arc<Mutex<Vec<Recorded>>>,
}

impl Double {
    pub(super) fn start(answer: impl Fn(&Recorded) -> Reply + Send + Sync + 'static) -> Self {
        Self::serve(None, Arc::new(answer))
    }

    /// With the certificate of `localhost`, and only for clients with a certificate.
    pub(super) fn start_with_tls(pki: &Pki, answer: impl Fn(&Recorded) -> Reply + Send + Sync + 'static) -> Self {
        let tls = open(&pki.fixture("client_verify.good.yml")).unwrap().tls();
        Self::serve(tls.map(TlsAcceptor::from), Arc::new(answer))
    }

    fn serve(tls: Option<TlsAcceptor>, answer: Arc<dyn Fn(&Recorded) -> Reply + Send + Sync>) -> Self {
        let requests = Arc::new(Mutex::new(Vec::new()));
        let recorded = requests.clone();
        let reply = move |request: Request<Incoming>| {
            let (answer, recorded) = (answer.clone(), recorded.clone());
            async move {
                let request = record(request).await;
                let reply = answer(&request);
                recorded.lock().unwrap().push(request);
                let mut response = Response::builder().status(reply.status);
                for (name, value) in reply.headers {
                    response = response.header(name, value);
                }
                response.body(Full::new(Bytes::from(reply.body))).unwrap()
            }
        };
        Self { server: connections::Double::start(tls, reply), requests }
    }

    pub(super) fn url(&self) -> String {
        // The certificate is that of a name.
        self.server.url().replace("https://127.0.0.1", "https://localhost")
    }

    /// The requests so far.
    pub(super) fn requests(&self) -> Vec<Recorded> {
        self.requests.lock().unwrap().clone()
    }
}

async fn record(request: Request<Incoming>) -> Recorded {
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let pairs = std::str::from_utf8(&body).unwrap().split('&').filter_map(|pair| pair.split_once('='));
    let decoded = |text: &str| percent_decode_str(text).decode_utf8().unwrap().into_owned();
    let headers = head.headers.iter();
    Recorded {
        method: head.method.to_string(),
        path: head.uri.path().to_owned(),
        headers: headers.map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect(),
        parameters: pairs.map(|(name, value)| (decoded(name), decoded(value))).collect(),
    }
}
