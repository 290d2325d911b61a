//! Which certificates a client trusts, and which one it presents.
//!
//! Invariant: a client trusts the certificates of one file, which must all be valid, or those of the system, and never
//! none by accident.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, RootCertStore};

use crate::regular_file;

/// The largest file of certificates that is read, in bytes: several times the file of a usual system.
const LIMIT: u64 = 1 << 20;

/// Why there are no certificates to trust.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The file cannot be read.
    #[error(transparent)]
    Unreadable(#[from] io::Error),
    /// The file or the system has no certificate, or no key, that can be used.
    #[error("{0}")]
    NoTrust(String),
}

/// Reads the certificates in a PEM file, which must be a regular file of at most 1 MiB. May block for a long time.
pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let pem = regular_file::read(path, LIMIT)?;
    let certificates: Result<_, _> = CertificateDer::pem_slice_iter(&pem).collect();
    certificates.map_err(no_trust)
}

/// Trusts these certificates, which must all be valid.
pub(crate) fn trusting(certificates: impl IntoIterator<Item = CertificateDer<'static>>) -> Result<ClientConfig, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots.add(certificate).map_err(no_trust)?;
    }
    if roots.is_empty() {
        return Err(Error::NoTrust("the file contains none".to_owned()));
    }
    with(roots)
}

/// Trusts the system's certificates. Those that cannot be parsed are left out.
pub(crate) fn trusting_the_system() -> Result<ClientConfig, Error> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let why = found.errors.first().map_or_else(|| "the system has none".to_owned(), ToString::to_string);
        return Err(Error::NoTrust(why));
    }
    with(roots)
}

/// Trusts no certificate, for a connection without TLS.
pub(crate) fn trusting_none() -> Result<ClientConfig, Error> {
    with(RootCertStore::empty())
}

/// Presents the certificate in a PEM file (with those that issued it), whose key is in another PEM file. Returns the path of
/// the file that is wrong with the error. May block for a long time.
pub(crate) fn present<'a>(config: &mut ClientConfig, cert: &'a Path, key: &'a Path) -> Result<(), (&'a Path, Error)> {
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
    config.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(identity));
    Ok(())
}

fn with(roots: RootCertStore) -> Result<ClientConfig, Error> {
    let versions =
        ClientConfig::builder_with_provider(Arc::new(default_provider())).with_safe_default_protocol_versions();
    Ok(versions.map_err(no_trust)?.with_root_certificates(roots).with_no_client_auth())
}

fn no_trust(error: impl ToString) -> Error {
    Error::NoTrust(error.to_string())
}
