//! Asks an exporter for its reports, over a connection of its own.
//!
//! Invariants: neither redirects nor proxies from the environment are followed; the request ends after the timeout; no more
//! than [`ANSWER_LIMIT`] bytes are read; a password never appears in a message.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{HeaderMap, Method, StatusCode};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use web_client::regular_file;
use web_client::server_url::ServerUrl;
use web_client::{Answer, AskError, Question, Tls};

use super::arguments::{Arguments, Format};

const PATH: &str = "/api/v1/reports";
/// The longest response that is read, in bytes.
const ANSWER_LIMIT: usize = 8 << 20;
/// The largest file with a password, in bytes.
const CREDENTIALS_LIMIT: u64 = 4096;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("{0} did not answer within {seconds} s; --timeout sets the limit", seconds = .1.as_secs())]
    Timeout(ServerUrl, Duration),
    #[error("{0} cannot be asked: {1}; --url names the exporter")]
    Unreachable(ServerUrl, String),
    #[error("{0} requires a password; --credentials-file names a file with user:password")]
    Unauthorized(ServerUrl),
    #[error("{0} answered with status {1}: {2}")]
    Refused(ServerUrl, u16, String),
    #[error("{0} is not a vram-exporter that has reports, or is older than this program")]
    Foreign(ServerUrl),
    #[error("{0} returned more than {ANSWER_LIMIT} bytes")]
    TooLong(ServerUrl),
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
    let timeout = || Error::Timeout(arguments.url.clone(), arguments.timeout);
    let answered = web_client::within(arguments.timeout, answer(arguments));
    answered.map_err(|error| failed(arguments, error))?.unwrap_or_else(|| Err(timeout()))
}

async fn answer(arguments: &Arguments) -> Result<String, Error> {
    let url = &arguments.url;
    let answer = web_client::ask(question(arguments, &target(arguments))?).await;
    let answer = answer.map_err(|error| failed(arguments, error))?;
    let body = String::from_utf8_lossy(&answer.body);
    let wanted = match arguments.format {
        Format::Text => "text/plain",
        Format::Json => "application/x-ndjson",
    };
    match answer.status {
        StatusCode::OK if answer.header(CONTENT_TYPE).starts_with(wanted) => Ok(body.into_owned()),
        StatusCode::OK => Err(Error::Foreign(url.clone())),
        StatusCode::UNAUTHORIZED => Err(Error::Unauthorized(url.clone())),
        _ => Err(refused(url, &answer, &body)),
    }
}

/// The exporter answers with a reason as JSON; anything else is another server, or an exporter without reports.
fn refused(url: &ServerUrl, answer: &Answer, body: &str) -> Error {
    let reason = serde_json::from_str::<serde_json::Value>(body).ok();
    match (reason.as_ref().and_then(|reason| reason.get("error")?.as_str()), answer.status) {
        (None, StatusCode::NOT_FOUND) => Error::Foreign(url.clone()),
        (reason, status) => Error::Refused(url.clone(), status.as_u16(), answer.secrets.quote(reason.unwrap_or(body))),
    }
}

fn question<'a>(arguments: &'a Arguments, target: &'a str) -> Result<Question<'a>, Error> {
    let mut headers = HeaderMap::new();
    if let Some(path) = &arguments.credentials_file {
        headers.insert(AUTHORIZATION, credentials(path)?);
    }
    let tls = Tls::trusting(&arguments.url, arguments.ca_file.as_deref());
    let tls = tls.map_err(|error| match &arguments.ca_file {
        Some(path) => Error::File { path: path.clone(), why: error.to_string() },
        None => Error::Local(error.to_string()),
    })?;
    Ok(Question {
        server: &arguments.url,
        method: Method::GET,
        target,
        headers,
        body: Default::default(),
        tls,
        limit: ANSWER_LIMIT,
    })
}

fn failed(arguments: &Arguments, error: AskError) -> Error {
    match error {
        AskError::Unreachable(why) => Error::Unreachable(arguments.url.clone(), why),
        AskError::TooLong(_) => Error::TooLong(arguments.url.clone()),
        AskError::Local(why) => Error::Local(why),
    }
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
    web_client::basic(line).ok_or_else(|| wrong("it cannot be sent in a header".to_owned()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn arguments(url: &str, workload: &str) -> Arguments {
        Arguments {
            job: None,
            workload: Some(workload.to_owned()),
            url: ServerUrl::parse(url, "", "").unwrap(),
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
