//! Which certificates a client trusts, and which one it presents.
//!
//! Invariant: a client trusts the certificates of one file, which must all be valid, or those of the system, and never
//! none by accident.

mod own;

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use self::own::OrOwn;
use crate::regular_file;
use crate::server_url::ServerUrl;

/// The largest file of certificates that is read, in bytes: several times the file of a usual system.
const LIMIT: u64 = 1 << 20;

/// Why there are no certificates to trust.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error(transparent)]
    Unreadable(#[from] io::Error),
    /// The file or the system has no certificate, or no key, that can be used.
    #[error("{0}")]
    NoTrust(String),
}

/// The settings of TLS for one server.
#[derive(Debug, Clone)]
pub struct Tls {
    config: ClientConfig,
    /// The name in the server's certificate; `None`: the host of its URL.
    name: Option<ServerName<'static>>,
}

impl Tls {
    /// Trusts the certificates in a PEM file, which must be a regular file of at most 1 MiB and contain no invalid one, or
    /// without a file those of the system. A server may present one of the file's certificates itself. For `http://`, nothing is
    /// read and nothing is trusted. May block for a long time.
    ///
    /// # Errors
    /// When there is no certificate to trust.
    pub fn trusting(server: &ServerUrl, ca_file: Option<&Path>) -> Result<Self, Error> {
        let config = match ca_file {
            _ if !server.is_https() => with(RootCertStore::empty(), Vec::new()),
            None => system(),
            Some(path) => listed(certificates(path)?),
        };
        Ok(Self { config: config?, name: None })
    }

    /// Expects this name in the server's certificate.
    pub(crate) fn named(self, name: Option<ServerName<'static>>) -> Self {
        Self { name, ..self }
    }

    /// Presents the certificate in a PEM file (with those that issued it), whose key is in another PEM file. Returns the path
    /// of the file that is wrong with the error. May block for a long time.
    pub(crate) fn presenting<'a>(mut self, cert: &'a Path, key: &'a Path) -> Result<Self, (&'a Path, Error)> {
        let chain = certificates(cert).map_err(|error| (cert, error))?;
        if chain.is_empty() {
            return Err((cert, Error::NoTrust("the file contains no certificate".to_owned())));
        }
        let pem = regular_file::read(key, LIMIT).map_err(|error| (key, error.into()))?;
        // The error of the parser could show a part of the key.
        let parsed = PrivateKeyDer::from_pem_slice(&pem);
        let parsed = parsed.map_err(|_| (key, Error::NoTrust("the file contains no private key".to_owned())))?;
        let identity = CertifiedKey::from_der(chain, parsed, &default_provider());
        let identity = identity.map_err(|error| (key, Error::NoTrust(error.to_string())))?;
        self.config.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(identity));
        Ok(self)
    }

    /// Makes the handshake with the server.
    pub(super) async fn connect<S>(self, server: &ServerUrl, stream: S) -> io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let host = || ServerName::try_from(server.host().trim_end_matches('.').to_owned()).map_err(io::Error::other);
        let name = self.name.map_or_else(host, Ok)?;
        TlsConnector::from(Arc::new(self.config)).connect(name, stream).await
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let pem = regular_file::read(path, LIMIT)?;
    let certificates: Result<_, _> = CertificateDer::pem_slice_iter(&pem).collect();
    certificates.map_err(no_trust)
}

/// Trusts these certificates, which must all be valid.
fn listed(certificates: Vec<CertificateDer<'static>>) -> Result<ClientConfig, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in &certificates {
        roots.add(certificate.clone()).map_err(no_trust)?;
    }
    if roots.is_empty() {
        return Err(Error::NoTrust("the file contains none".to_owned()));
    }
    with(roots, certificates)
}

/// Trusts the system's certificates. Those that cannot be parsed are left out.
fn system() -> Result<ClientConfig, Error> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let why = found.errors.first().map_or_else(|| "the system has none".to_owned(), ToString::to_string);
        return Err(Error::NoTrust(why));
    }
    with(roots, Vec::new())
}

/// Trusts `roots`, and servers that present one of the certificates in `own`.
fn with(roots: RootCertStore, own: Vec<CertificateDer<'static>>) -> Result<ClientConfig, Error> {
    let provider = Arc::new(default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions();
    let builder = builder.map_err(no_trust)?;
    if own.is_empty() {
        return Ok(builder.with_root_certificates(roots).with_no_client_auth());
    }
    let usual = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().map_err(no_trust)?;
    let verifier = Arc::new(OrOwn { usual, own });
    Ok(builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
}

fn no_trust(error: impl ToString) -> Error {
    Error::NoTrust(error.to_string())
}
