//! A web-config file and the files that it names, validated as a whole: all of it is valid, or none of it is used.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderName, HeaderValue};
use rustls::ServerConfig;

use super::bucket::{Bucket, Limit};
use super::client::ClientAuth;
use super::document::{Document, RateLimit, Tls};
use super::error::{Error, Problem};
use super::files::{FileReader, Fingerprint};
use super::headers::headers;
use super::tls::server_config;
use super::users::Users;

/// The settings of a guard.
#[derive(Default)]
pub(super) struct Settings {
    pub(super) tls: Option<Arc<ServerConfig>>,
    /// Whether a client's certificate must contain one of `client_allowed_sans`.
    checks_names: bool,
    pub(super) headers: Arc<[(HeaderName, HeaderValue)]>,
    pub(super) users: Users,
    pub(super) bucket: Option<Arc<Bucket>>,
    pub(super) summary: Summary,
}

/// A summary of the settings in a web-config file. Displayed as one line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// `None`: plain HTTP.
    pub client_auth: Option<ClientAuth>,
    /// The number of users; without users, no password is required.
    pub users: usize,
    /// The number of headers that are added to every response.
    pub headers: usize,
    /// Whether there is a rate limit.
    pub rate_limit: bool,
    /// Where the effect differs from what the file seems to specify. Each note is one line.
    pub notes: Vec<String>,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.client_auth {
            Some(auth) => write!(f, "TLS, {auth:?}")?,
            None => f.write_str("no TLS")?,
        }
        write!(f, "; {} users; {} headers; ", self.users, self.headers)?;
        f.write_str(if self.rate_limit { "rate limit" } else { "no rate limit" })
    }
}

impl Settings {
    /// Reads and validates the file and the files that it names.
    pub(super) fn read(file: &Path) -> Result<(Self, Fingerprint), Error> {
        let mut files = FileReader::new();
        let settings = Self::validate(file, &mut files).map_err(|problem| Error::new(file, problem))?;
        Ok((settings, files.finish()))
    }

    /// What clients must prove, with the name used in messages. No kind of proof is dropped while the server runs.
    pub(super) fn required_proofs(&self) -> [(&'static str, bool); 5] {
        let client = |asks: fn(ClientAuth) -> bool| self.summary.client_auth.is_some_and(asks);
        [
            ("TLS", self.tls.is_some()),
            ("basic_auth_users", !self.users.is_empty()),
            ("the requirement for client certificates", client(ClientAuth::needs_certificate)),
            (
                "the requirement for verified client certificates",
                client(|auth| auth == ClientAuth::RequireAndVerifyClientCert),
            ),
            ("client_allowed_sans", self.checks_names),
        ]
    }

    fn validate(file: &Path, files: &mut FileReader) -> Result<Self, Problem> {
        let document = Document::parse(&files.read(file)?)?;
        let mut notes = Vec::new();
        let users = Users::read(&document.basic_auth_users.unwrap_or_default(), &mut notes)?;
        let http = document.http_server_config.unwrap_or_default();
        let headers: Arc<[_]> = headers(&http.headers.unwrap_or_default())?.into();
        let limit = limit(&document.rate_limit.unwrap_or_default(), &mut notes)?;
        let folder = file.parent().unwrap_or(Path::new(""));
        let written = document.tls_server_config.filter(|tls| *tls != Tls::default());
        let checks_names = written.as_ref().is_some_and(|tls| tls.client_allowed_sans.is_some());
        let tls = match written {
            Some(tls) => Some(server_config(&tls, http.http2.unwrap_or(true), folder, files, &mut notes)?),
            None => None,
        };
        if tls.is_none() && !users.is_empty() {
            notes.push("basic_auth_users: without TLS, passwords cross the network unencrypted".to_owned());
        }
        let summary = Summary {
            client_auth: tls.as_ref().map(|&(_, auth)| auth),
            users: users.len(),
            headers: headers.len(),
            rate_limit: limit.is_some(),
            notes,
        };
        let tls = tls.map(|(config, _)| Arc::new(config));
        let bucket = limit.map(|limit| Arc::new(Bucket::new(limit, Instant::now())));
        Ok(Self { tls, checks_names, headers, users, bucket, summary })
    }
}

/// `None` if the interval is 0 or not given.
fn limit(written: &RateLimit, notes: &mut Vec<String>) -> Result<Option<Limit>, Problem> {
    let burst = u32::try_from(written.burst.unwrap_or(0))
        .map_err(|_| Problem::refused("rate_limit.burst", "is not between 0 and 4294967295"))?;
    let interval = written.interval.map_or(Duration::ZERO, |interval| interval.0);
    if interval.is_zero() {
        if burst > 0 {
            notes.push("rate_limit: without an interval there is no limit".to_owned());
        }
        return Ok(None);
    }
    if burst == 0 {
        notes.push("rate_limit.burst: 0 admits no request".to_owned());
    }
    Ok(Some(Limit { interval, burst }))
}
