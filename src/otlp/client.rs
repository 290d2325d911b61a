//! Sends a push, over a connection of its own: pushes are rare, so keeping connections open would save nothing.
//!
//! Invariants: redirects and proxies from the environment are not followed, an attempt ends after the timeout, and no more
//! than [`ANSWER_LIMIT`] bytes of a response are read.

use std::error::Error as StdError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::client::conn::http1::handshake;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HOST, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::{HeaderMap, Request, Response, Uri};
use hyper_rustls::HttpsConnectorBuilder;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceResponse;
use prost::Message;
use rustls::ClientConfig;
use tokio::task::JoinSet;
use tower::ServiceExt;

use super::error::{Error, cut};
use super::headers::{self, Secrets};
use super::settings::Settings;
use crate::client_tls;

const AGENT: &str = concat!("vram-exporter/", env!("CARGO_PKG_VERSION"));
/// The path of metrics, which the protocol defines.
const PATH: &str = "/v1/metrics";
/// The longest response that is read, in bytes.
const ANSWER_LIMIT: usize = 64 << 10;
/// The longest `Retry-After` that is honoured.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(300);

/// The error that a receiver describes in a response, `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(string, tag = "2")]
    message: String,
}

/// What the receiver did not accept of a push that it accepted.
pub(super) struct Rejected {
    pub(super) points: u64,
    pub(super) text: String,
}

/// What is sent, and whether it was.
pub(super) struct Push<'a> {
    pub(super) body: Bytes,
    pub(super) points: usize,
    pub(super) gzip: bool,
    /// Set when the request may have left.
    pub(super) sent: &'a AtomicBool,
}

/// What a connection needs, as the files specify it at the time.
pub(super) struct Access {
    tls: ClientConfig,
    headers: HeaderMap,
}

impl Access {
    /// Reads the files. May block for a long time.
    pub(super) fn read(settings: &Settings) -> Result<Self, Error> {
        let no_trust = |error: client_tls::Error| Error::NoTrust(error.to_string());
        let tls = match &settings.ca_file {
            _ if url(&settings.endpoint)?.scheme_str() == Some("http") => {
                client_tls::trusting_none().map_err(no_trust)?
            }
            None => client_tls::trusting_the_system().map_err(no_trust)?,
            Some(path) => client_tls::certificates(path)
                .and_then(client_tls::trusting)
                .map_err(|error| Error::NoTrust(format!("{}: {error}", path.display())))?,
        };
        Ok(Self { tls, headers: headers::read(settings)? })
    }
}

/// The URL of metrics at the endpoint.
pub(super) fn url(endpoint: &str) -> Result<Uri, Error> {
    let base = endpoint.trim_end_matches('/');
    let url = if base.ends_with(PATH) { base.to_owned() } else { format!("{base}{PATH}") };
    url.parse().map_err(|error: hyper::http::uri::InvalidUri| Error::Url(error.to_string()))
}

/// How many of the points were rejected according to the receiver, whose number may be any.
fn rejected(number: i64, points: usize) -> u64 {
    u64::try_from(number).unwrap_or(0).min(points.try_into().unwrap_or(u64::MAX))
}

/// Sends a push. Returns what the receiver did not accept of it.
pub(super) async fn post(uri: &Uri, access: Access, push: Push<'_>) -> Result<Option<Rejected>, Error> {
    let (endpoint, secrets) = (uri.to_string(), Secrets::of(&access.headers));
    // Before the text is cut, because a part of a secret would not be found.
    let quote = |text: &str| cut(&secrets.redact(text));
    // The task of the connection ends with this set, whatever state the connection is in.
    let mut tasks = JoinSet::new();
    let response = send(uri, access, &push, &mut tasks).await?;
    let (code, after) = (response.status(), retry_after(&response));
    let content = read(&endpoint, response.into_body()).await?;
    if !code.is_success() {
        // A proxy or a server of another kind answers with text, a receiver of OTLP with a message.
        let described =
            content.as_deref().and_then(|content| Status::decode(content).ok()).map(|status| status.message);
        let text = described.filter(|text| !text.is_empty()).unwrap_or_else(|| {
            content.as_deref().map(|content| String::from_utf8_lossy(content).into_owned()).unwrap_or_default()
        });
        return Err(Error::Answer { endpoint, code: code.as_u16(), text: quote(&text), after });
    }
    let decoded = content.as_deref().map(ExportMetricsServiceResponse::decode);
    let Some(Ok(response)) = decoded else { return Err(Error::NotOtlp { endpoint, code: code.as_u16() }) };
    let partial = response.partial_success.unwrap_or_default();
    let points = rejected(partial.rejected_data_points, push.points);
    Ok((points > 0 || !partial.error_message.is_empty())
        .then(|| Rejected { points, text: quote(&partial.error_message) }))
}

async fn send(
    uri: &Uri,
    access: Access,
    push: &Push<'_>,
    tasks: &mut JoinSet<hyper::Result<()>>,
) -> Result<Response<Incoming>, Error> {
    let endpoint = uri.to_string();
    let transport = |error: &(dyn StdError + 'static)| Error::transport(&endpoint, error);
    let host = uri.authority().map_or("", |authority| authority.as_str());
    let request = Request::post(uri.path()).header(HOST, host).header(USER_AGENT, AGENT);
    let request = request.header(CONTENT_TYPE, "application/x-protobuf").body(Full::new(push.body.clone()));
    let mut request = request.map_err(|error| Error::Url(error.to_string()))?;
    if push.gzip {
        request.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    request.headers_mut().extend(access.headers);
    let connector = HttpsConnectorBuilder::new().with_tls_config(access.tls).https_or_http().enable_http1().build();
    let stream = connector.oneshot(uri.clone()).await.map_err(|error| transport(&*error))?;
    let (mut sender, connection) = handshake(stream).await.map_err(|error| transport(&error))?;
    // The connection's errors are reported by the response.
    tasks.spawn(connection);
    push.sent.store(true, Ordering::Relaxed);
    sender.send_request(request).await.map_err(|error| transport(&error))
}

/// Reads a response; `None` if it is longer than [`ANSWER_LIMIT`].
async fn read<B>(endpoint: &str, body: B) -> Result<Option<Bytes>, Error>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn StdError + Send + Sync>>>,
{
    match Limited::new(body, ANSWER_LIMIT).collect().await {
        Ok(content) => Ok(Some(content.to_bytes())),
        Err(error) if error.is::<LengthLimitError>() => Ok(None),
        Err(error) => Err(Error::transport(endpoint, &*error)),
    }
}

/// How long the receiver asks to wait; `None` if the response does not specify this in seconds.
fn retry_after<B>(response: &Response<B>) -> Option<Duration> {
    let seconds = response.headers().get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).min(LONGEST_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_connection_ends_with_its_attempt() {
        const LENGTH: usize = 64 << 20;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = url(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let access = Access { tls: client_tls::trusting_none().unwrap(), headers: HeaderMap::new() };
        let body = Bytes::from(vec![0; LENGTH]);
        let attempt = tokio::spawn(async move {
            let push = Push { body, points: 1, gzip: false, sent: &AtomicBool::new(false) };
            post(&uri, access, push).await.map(drop)
        });
        let (mut stream, _) = listener.accept().await.unwrap();
        // The request is on its way, and its buffers are smaller than the body.
        stream.read_u8().await.unwrap();
        attempt.abort();
        assert!(attempt.await.unwrap_err().is_cancelled());
        let mut content = Vec::new();
        // The client may close the connection with or without a reset.
        let _ = stream.read_to_end(&mut content).await;
        assert!(content.len() < LENGTH, "the rest of the body was sent after the attempt");
    }

    #[test]
    fn no_more_points_are_rejected_than_were_sent() {
        for (number, expected) in [(-1, 0), (0, 0), (3, 3), (10, 10), (11, 10), (i64::MAX, 10), (i64::MIN, 0)] {
            assert_eq!(rejected(number, 10), expected, "{number}");
        }
    }

    #[test]
    fn the_path_of_metrics_is_appended_once() {
        for (endpoint, expected) in [
            ("http://localhost:4318", "http://localhost:4318/v1/metrics"),
            ("http://localhost:4318/", "http://localhost:4318/v1/metrics"),
            ("https://a/api/v1/otlp/", "https://a/api/v1/otlp/v1/metrics"),
            ("https://a/otlp/v1/metrics", "https://a/otlp/v1/metrics"),
            ("http://[::1]:9090/v1/metrics/", "http://[::1]:9090/v1/metrics"),
        ] {
            assert_eq!(url(endpoint).unwrap().to_string(), expected);
        }
    }
}
