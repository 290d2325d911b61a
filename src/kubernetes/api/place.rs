//! Where the API server is and whom to trust there, as the settings and the files that they name say now.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hyper::Uri;
use kube::Config;
use kube::config::InClusterError;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

use super::Server;
use super::error::{Error, innermost};

/// The certificates' key, for messages.
const CERTIFICATES: &str = "the certificates to trust (kubernetes.ca-file)";
/// Where a pod's own certificates and token are.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// A server that can be asked.
#[derive(Debug, Clone)]
pub(super) struct Place {
    /// Scheme, host and port; no path.
    pub(super) uri: Uri,
    /// For `https`; with `http` it trusts nobody and is not used.
    pub(super) tls: ClientConfig,
    /// The file with the token, and what that is needed as.
    pub(super) token: Option<(PathBuf, &'static str)>,
}

impl Place {
    /// Reads the files that are needed, which may take its time.
    pub(super) fn read(server: &Server) -> Result<Self, Error> {
        match server {
            Server::InCluster => {
                let config = Config::incluster_env().map_err(|error| no_service_account(&error))?;
                let certificates = config.root_cert.unwrap_or_default().into_iter().map(CertificateDer::from);
                let token = config.auth_info.token_file.map(|path| (path.into(), "the token for the API server"));
                Ok(Self { uri: config.cluster_url, tls: trusting(certificates)?, token })
            }
            Server::At { url, token_file, ca_file } => {
                let uri = url.parse::<Uri>().map_err(|error| Error::Url(error.to_string()))?;
                let tls = match ca_file {
                    Some(path) => trusting(certificates(path)?)?,
                    // Without TLS there is nobody to trust, and the system's certificates need not be read for it.
                    None if uri.scheme_str() == Some("http") => tls(RootCertStore::empty())?,
                    None => trusting_the_system()?,
                };
                let purpose = "the token for the API server (kubernetes.token-file)";
                Ok(Self { uri, tls, token: token_file.clone().map(|path| (path, purpose)) })
            }
        }
    }

    /// What could not be read, as far as the settings tell.
    pub(super) fn unread(server: &Server, error: &std::io::Error) -> Error {
        match server {
            Server::InCluster => Error::file(Path::new(SERVICE_ACCOUNT), "the pod's service account", error),
            Server::At { ca_file: Some(path), .. } => Error::file(path, CERTIFICATES, error),
            Server::At { ca_file: None, .. } => Error::NoTrust(error.to_string()),
        }
    }
}

fn no_service_account(error: &InClusterError) -> Error {
    match error {
        InClusterError::ParseCertificates(_) => Error::NoTrust(innermost(error)),
        _ => Error::NoServiceAccount(error.to_string()),
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let pem = std::fs::read(path).map_err(|error| Error::file(path, CERTIFICATES, &error))?;
    let certificates: Result<_, _> = CertificateDer::pem_slice_iter(&pem).collect();
    certificates.map_err(|error| Error::NoTrust(format!("{}: {error}", path.display())))
}

/// Trusts these, all of which must be certificates.
fn trusting(certificates: impl IntoIterator<Item = CertificateDer<'static>>) -> Result<ClientConfig, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots.add(certificate).map_err(|error| Error::NoTrust(innermost(&error)))?;
    }
    if roots.is_empty() {
        return Err(Error::NoTrust("there is none in the file".to_owned()));
    }
    tls(roots)
}

/// Trusts whom the system trusts. Of those, some may be too odd to be read.
fn trusting_the_system() -> Result<ClientConfig, Error> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let why = found.errors.first().map_or_else(|| "the system has none".to_owned(), |error| innermost(error));
        return Err(Error::NoTrust(why));
    }
    tls(roots)
}

fn tls(roots: RootCertStore) -> Result<ClientConfig, Error> {
    let versions =
        ClientConfig::builder_with_provider(Arc::new(default_provider())).with_safe_default_protocol_versions();
    let versions = versions.map_err(|error| Error::NoTrust(innermost(&error)))?;
    Ok(versions.with_root_certificates(roots).with_no_client_auth())
}
