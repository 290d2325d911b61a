//! A double of Prometheus' HTTP API, which records the requests and answers what a test wants.

use std::fs::File;
use std::io::BufReader;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::body::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use percent_encoding::percent_decode_str;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Runtime;
use tokio_rustls::TlsAcceptor;

use crate::web_config::pki::Pki;

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
    address: SocketAddr,
    secured: bool,
    requests: Arc<Mutex<Vec<Recorded>>>,
    _runtime: Runtime,
}

impl Double {
    pub(super) fn start(answer: impl Fn(&Recorded) -> Reply + Send + Sync + 'static) -> Self {
        Self::serve(None, Arc::new(answer))
    }

    /// With the certificate of `localhost`, and only for clients with a certificate.
    pub(super) fn start_with_tls(pki: &Pki, answer: impl Fn(&Recorded) -> Reply + Send + Sync + 'static) -> Self {
        let certificates = |name: &str| {
            let file = BufReader::new(File::open(pki.at(name)).unwrap());
            CertificateDer::pem_reader_iter(file).map(Result::unwrap).collect::<Vec<_>>()
        };
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates("ca.crt"));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let clients = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone()).build().unwrap();
        let key = PrivateKeyDer::from_pem_file(pki.at("server.key")).unwrap();
        let config =
            rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config =
            config.with_client_cert_verifier(clients).with_single_cert(certificates("server.crt"), key).unwrap();
        Self::serve(Some(TlsAcceptor::from(Arc::new(config))), Arc::new(answer))
    }

    fn serve(tls: Option<TlsAcceptor>, answer: Arc<dyn Fn(&Recorded) -> Reply + Send + Sync>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (secured, recorded) = (tls.is_some(), requests.clone());
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (tls, answer, recorded) = (tls.clone(), answer.clone(), recorded.clone());
                tokio::spawn(async move {
                    let Some(tls) = tls else { return connection(stream, answer, recorded).await };
                    // A handshake that fails is what the test wants.
                    if let Ok(stream) = tls.accept(stream).await {
                        connection(stream, answer, recorded).await;
                    }
                });
            }
        });
        Self { address, secured, requests, _runtime: runtime }
    }

    pub(super) fn url(&self) -> String {
        if self.secured {
            format!("https://localhost:{}", self.address.port())
        } else {
            format!("http://{}", self.address)
        }
    }

    /// The requests so far.
    pub(super) fn requests(&self) -> Vec<Recorded> {
        self.requests.lock().unwrap().clone()
    }
}

type Answer = Arc<dyn Fn(&Recorded) -> Reply + Send + Sync>;

async fn connection<S>(stream: S, answer: Answer, recorded: Arc<Mutex<Vec<Recorded>>>)
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let service = service_fn(move |request: Request<Incoming>| {
        let (answer, recorded) = (answer.clone(), recorded.clone());
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            let pairs = std::str::from_utf8(&body).unwrap().split('&').filter_map(|pair| pair.split_once('='));
            let decoded = |text: &str| percent_decode_str(text).decode_utf8().unwrap().into_owned();
            let headers = head.headers.iter();
            let request = Recorded {
                method: head.method.to_string(),
                path: head.uri.path().to_owned(),
                headers: headers.map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect(),
                parameters: pairs.map(|(name, value)| (decoded(name), decoded(value))).collect(),
            };
            let reply = answer(&request);
            recorded.lock().unwrap().push(request);
            let mut response = Response::builder().status(reply.status);
            for (name, value) in reply.headers {
                response = response.header(name, value);
            }
            Ok::<_, hyper::Error>(response.body(Full::new(Bytes::from(reply.body))).unwrap())
        }
    });
    // A client that ends the connection early is not an error.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}
