//! Asks an exporter for its reports, over a connection of its own.
//!
//! Invariants: neither redirects nor proxies from the environment are followed; the request ends after the timeout; no more
//! than [`ANSWER_LIMIT`] bytes are read; a password never appears in a message.

use std::error::Error as StdError;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::handshake;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, USER_AGENT};
use hyper::{Request, Response, StatusCode, Uri};
use hyper_rustls::HttpsConnectorBuilder;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use rustls::ClientConfig;
use tokio::runtime;
use tokio::task::JoinSet;
use tower::ServiceExt;

use super::arguments::{Arguments, Format, one_line};
use crate::{client_tls, regular_file};

const AGENT: &str = concat!("vram-exporter/", env!("CARGO_PKG_VERSION"));
const PATH: &str = "/api/v1/reports";
/// The longest response that is read, in bytes.
const ANSWER_LIMIT: usize = 8 << 20;
/// The largest file with a password, in bytes.
const CREDENTIALS_LIMIT: u64 = 4096;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("{0} did not answer within {seconds} s; --timeout sets the limit", seconds = .1.as_secs())]
    Timeout(Uri, Duration),
    #[error("{0} cannot be asked: {1}; --url names the exporter")]
    Unreachable(Uri, String),
    #[error("{0} requires a password; --credentials-file names a file with user:password")]
    Unauthorized(Uri),
    #[error("{0} answered with status {1}: {2}")]
    Refused(Uri, u16, String),
    #[error("{0} is not a vram-exporter that has reports, or is older than this program")]
    Foreign(Uri),
    #[error("{0} returned more than {ANSWER_LIMIT} bytes")]
    TooLong(Uri),
    #[error("{} cannot be used: {why}", path.display())]
    File { path: PathBuf, why: String },
    #[error("the request cannot be sent: {0}")]
    Local(String),
}

/// The reports as text or as JSON Lines, empty if there are none.
///
/// # Errors
/// When there is no such answer within the timeout.
pub(super) fn ask(arguments: &Arguments) -> Result<String, Error> {
    let local = |error: &dyn StdError| Error::Local(error.to_string());
    let runtime = runtime::Builder::new_current_thread().enable_all().build().map_err(|error| local(&error))?;
    let answer = runtime.block_on(async {
        let answer = tokio::time::timeout(arguments.timeout, answer(arguments)).await;
        answer.unwrap_or_else(|_| Err(Error::Timeout(arguments.url.clone(), arguments.timeout)))
    });
    // A name that is still being looked up must not delay the end.
    runtime.shutdown_background();
    answer
}

async fn answer(arguments: &Arguments) -> Result<String, Error> {
    let url = &arguments.url;
    // The task of the connection ends with this set.
    let mut tasks = JoinSet::new();
    let response = send(arguments, &mut tasks).await?;
    let status = response.status();
    let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default().to_owned();
    let body = Limited::new(response.into_body(), ANSWER_LIMIT).collect().await;
    let body = body.map_err(|error| match error.is::<LengthLimitError>() {
        true => Error::TooLong(url.clone()),
        false => Error::Unreachable(url.clone(), innermost(&*error)),
    })?;
    let body = String::from_utf8_lossy(&body.to_bytes()).into_owned();
    let wanted = match arguments.format {
        Format::Text => "text/plain",
        Format::Json => "application/x-ndjson",
    };
    match status {
        StatusCode::OK if kind.starts_with(wanted) => Ok(body),
        StatusCode::OK => Err(Error::Foreign(url.clone())),
        StatusCode::UNAUTHORIZED => Err(Error::Unauthorized(url.clone())),
        _ => {
            // The exporter answers with a reason as JSON; anything else is another server, or an exporter without reports.
            let reason = serde_json::from_str::<serde_json::Value>(&body).ok();
            let reason = reason.as_ref().and_then(|reason| reason.get("error")?.as_str());
            match (reason, status) {
                (None, StatusCode::NOT_FOUND) => Err(Error::Foreign(url.clone())),
                _ => Err(Error::Refused(url.clone(), status.as_u16(), one_line(reason.unwrap_or(&body)))),
            }
        }
    }
}

async fn send(arguments: &Arguments, tasks: &mut JoinSet<hyper::Result<()>>) -> Result<Response<Incoming>, Error> {
    let url = &arguments.url;
    let unreachable = |error: &(dyn StdError + 'static)| Error::Unreachable(url.clone(), innermost(error));
    let host = url.authority().map_or("", |authority| authority.as_str());
    let request = Request::get(target(arguments)).header(HOST, host).header(USER_AGENT, AGENT);
    let mut request = request.body(Full::<Bytes>::default()).map_err(|error| Error::Local(error.to_string()))?;
    if let Some(path) = &arguments.credentials_file {
        request.headers_mut().insert(AUTHORIZATION, credentials(path)?);
    }
    let tls = tls(arguments)?;
    let connector = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().build();
    let stream = connector.oneshot(url.clone()).await.map_err(|error| unreachable(&*error))?;
    let (mut sender, connection) = handshake(stream).await.map_err(|error| unreachable(&error))?;
    // The connection's errors are reported by the response.
    tasks.spawn(connection);
    sender.send_request(request).await.map_err(|error| unreachable(&error))
}

/// The path and the query of the request, below the path of the URL.
fn target(arguments: &Arguments) -> String {
    let format = match arguments.format {
        Format::Text => "text",
        Format::Json => "lines",
    };
    let named = [("job", &arguments.job), ("workload", &arguments.workload)];
    let named = named.iter().filter_map(|(what, name)| {
        Some(format!("&{what}={}", utf8_percent_encode(name.as_deref()?, NON_ALPHANUMERIC)))
    });
    let base = arguments.url.path().trim_end_matches('/');
    format!("{base}{PATH}?format={format}{}", named.collect::<String>())
}

/// The header for the user and the password in a file.
fn credentials(path: &Path) -> Result<HeaderValue, Error> {
    let wrong = |why: String| Error::File { path: path.to_owned(), why };
    let content = regular_file::read(path, CREDENTIALS_LIMIT).map_err(|error| wrong(error.to_string()))?;
    let line = content.strip_suffix(b"\n").unwrap_or(&content);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if !line.contains(&b':') || line.contains(&b'\n') {
        return Err(wrong("it must contain one line, user:password".to_owned()));
    }
    let value = HeaderValue::from_str(&format!("Basic {}", BASE64_STANDARD.encode(line)));
    let mut value = value.map_err(|error| wrong(error.to_string()))?;
    value.set_sensitive(true);
    Ok(value)
}

fn tls(arguments: &Arguments) -> Result<ClientConfig, Error> {
    if arguments.url.scheme_str() != Some("https") {
        return client_tls::trusting_none().map_err(|error| Error::Local(error.to_string()));
    }
    match &arguments.ca_file {
        None => client_tls::trusting_the_system().map_err(|error| Error::Local(error.to_string())),
        Some(path) => (client_tls::certificates(path).and_then(client_tls::trusting))
            .map_err(|error| Error::File { path: path.clone(), why: error.to_string() }),
    }
}

/// The innermost cause of a failure, in one line.
fn innermost(error: &(dyn StdError + 'static)) -> String {
    let mut innermost = error;
    while let Some(cause) = innermost.source() {
        innermost = cause;
    }
    // An error of the certificate's check is known only to its description.
    let text = innermost.to_string();
    one_line(if text.is_empty() { "the connection failed" } else { &text })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn arguments(url: &'static str, workload: &str) -> Arguments {
        Arguments {
            job: None,
            workload: Some(workload.to_owned()),
            url: Uri::from_static(url),
            format: Format::Json,
            timeout: Duration::from_secs(1),
            credentials_file: None,
            ca_file: None,
        }
    }

    #[test]
    fn a_name_of_any_bytes_is_one_parameter() {
        assert_eq!(
            target(&arguments("https://a/gpu/", "unit:a&limit=1 #é")),
            "/gpu/api/v1/reports?format=lines&workload=unit%3Aa%26limit%3D1%20%23%C3%A9"
        );
    }

    #[test]
    fn credentials_are_one_line_and_do_not_appear_in_messages() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("credentials");
        let with = |content: &str| {
            fs::write(&path, content).unwrap();
            credentials(&path)
        };
        let header = with("ada:se:cret\n").unwrap();
        assert_eq!(header, "Basic YWRhOnNlOmNyZXQ=");
        assert!(!format!("{header:?}").contains("YWRh"));
        for content in ["secret", "", "ada:secret\nmore\n"] {
            let error = with(content).unwrap_err().to_string();
            assert!(error.contains("user:password") && !error.contains("secret"), "{error}");
        }
        assert!(with(&"x:y".repeat(5000)).is_err());
        assert!(credentials(folder.path()).unwrap_err().to_string().contains("cannot be used"));
    }
}
