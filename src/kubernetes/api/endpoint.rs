//! The API server's address, the certificates to trust and the token file, from the settings and the files they name.

use std::env::VarError;
use std::io::ErrorKind;
use std::path::Path;

use hyper::Uri;
use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;

use super::error::Error;
use super::settings::Server;
use super::token::TokenFile;
use crate::client_tls;

/// The name of the certificates in error messages, with their configuration key.
const CERTIFICATES: &str = "the certificates to trust (kubernetes.ca-file)";
/// The folder of a pod's own certificates and token.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// What a connection needs.
#[derive(Debug, Clone)]
pub(super) struct Endpoint {
    /// Scheme, host and port; no path.
    pub(super) uri: Uri,
    /// For `https`; with `http` it trusts no certificate and is not used.
    pub(super) tls: ClientConfig,
    pub(super) token: Option<TokenFile>,
}

impl Endpoint {
    /// Reads the files that are needed. May block for a long time.
    pub(super) fn read(server: &Server) -> Result<Self, Error> {
        match server {
            Server::InCluster => Self::in_cluster(|name| std::env::var(name), Path::new(SERVICE_ACCOUNT)),
            Server::At { url, token_file, ca_file } => {
                let uri = url.parse::<Uri>().map_err(|error| Error::Url(error.to_string()))?;
                let tls = match ca_file {
                    Some(path) => client_tls::trusting(certificates(path, CERTIFICATES)?).map_err(no_trust)?,
                    // Without TLS no certificate is used, so the system's certificates need not be read.
                    None if uri.scheme_str() == Some("http") => client_tls::trusting_none().map_err(no_trust)?,
                    None => client_tls::trusting_the_system().map_err(no_trust)?,
                };
                let purpose = "the token for the API server (kubernetes.token-file)";
                Ok(Self { uri, tls, token: token_file.clone().map(|path| TokenFile { path, purpose }) })
            }
        }
    }

    /// The cluster's own server, from the variables and the two files of a pod with a service account.
    fn in_cluster(variable: impl Fn(&str) -> Result<String, VarError>, folder: &Path) -> Result<Self, Error> {
        let variable = |name| match variable(name) {
            Ok(value) if !value.is_empty() => Ok(value),
            Ok(_) => Err(Error::NoServiceAccount(format!("the variable {name} is empty"))),
            Err(error) => Err(Error::NoServiceAccount(format!("the variable {name}: {error}"))),
        };
        let (host, port) = (variable("KUBERNETES_SERVICE_HOST")?, variable("KUBERNETES_SERVICE_PORT")?);
        // Only an IPv6 address has colons; it needs brackets before the port.
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        let server = format!("https://{host}:{port}");
        port.parse::<u16>().map_err(|error| Error::NoServiceAccount(format!("{server}: {error}")))?;
        let uri = server.parse().map_err(|error| Error::NoServiceAccount(format!("{server}: {error}")))?;
        let trusted =
            certificates(&folder.join("ca.crt"), "the certificates to trust").map_err(|error| match error {
                Error::File { kind: ErrorKind::NotFound, .. } => Error::NoServiceAccount(error.to_string()),
                error => error,
            })?;
        let token = Some(TokenFile { path: folder.join("token"), purpose: "the token for the API server" });
        Ok(Self { uri, tls: client_tls::trusting(trusted).map_err(no_trust)?, token })
    }

    /// The error for files that could not be read, naming them as precisely as the settings allow.
    pub(super) fn unread(server: &Server, error: &std::io::Error) -> Error {
        match server {
            Server::InCluster => Error::file(Path::new(SERVICE_ACCOUNT), "the pod's service account", error),
            Server::At { ca_file: Some(path), .. } => Error::file(path, CERTIFICATES, error),
            Server::At { ca_file: None, .. } => Error::NoTrust(error.to_string()),
        }
    }
}

fn certificates(path: &Path, purpose: &'static str) -> Result<Vec<CertificateDer<'static>>, Error> {
    client_tls::certificates(path).map_err(|error| match error {
        client_tls::Error::Unreadable(error) => Error::file(path, purpose, &error),
        client_tls::Error::NoTrust(text) => Error::NoTrust(format!("{}: {text}", path.display())),
    })
}

fn no_trust(error: client_tls::Error) -> Error {
    Error::NoTrust(error.to_string())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn in_cluster(host: &str, port: &str, folder: &Path) -> Result<Endpoint, Error> {
        let variable = |name: &str| match name {
            "KUBERNETES_SERVICE_HOST" => Ok(host.to_owned()),
            "KUBERNETES_SERVICE_PORT" => Ok(port.to_owned()),
            _ => Err(VarError::NotPresent),
        };
        Endpoint::in_cluster(variable, folder)
    }

    #[test]
    fn a_volume_of_token_and_certificates_alone_is_enough() {
        let folder = tempfile::tempdir().unwrap();
        let authority = rcgen::generate_simple_self_signed(["kubernetes".to_owned()]).unwrap();
        fs::write(folder.path().join("ca.crt"), authority.cert.pem()).unwrap();
        let cases = [
            ("10.96.0.1", "443", "10.96.0.1:443"),
            ("10.96.0.1", "6443", "10.96.0.1:6443"),
            ("fd00::1", "443", "[fd00::1]:443"),
            ("api.example", "6443", "api.example:6443"),
        ];
        for (host, port, expected) in cases {
            let endpoint = in_cluster(host, port, folder.path()).unwrap();
            assert_eq!(
                (endpoint.uri.scheme_str(), endpoint.uri.authority().unwrap().as_str()),
                (Some("https"), expected)
            );
            assert_eq!(endpoint.token.unwrap().path, folder.path().join("token"));
        }
        for (host, port) in [("", "443"), ("10.96.0.1", "x"), ("a b", "443")] {
            assert!(matches!(in_cluster(host, port, folder.path()), Err(Error::NoServiceAccount(_))), "{host}:{port}");
        }
    }

    #[test]
    fn what_a_pod_without_a_service_account_lacks_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let text = in_cluster("10.96.0.1", "443", folder.path()).unwrap_err().to_string();
        assert!(text.contains("ca.crt") && text.contains("automountServiceAccountToken"), "{text}");
        let absent = Endpoint::in_cluster(|_| Err(VarError::NotPresent), folder.path()).unwrap_err().to_string();
        assert!(
            absent.contains("KUBERNETES_SERVICE_HOST") && absent.contains("automountServiceAccountToken"),
            "{absent}"
        );
    }
}
