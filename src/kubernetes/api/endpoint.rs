//! The API server's address, the certificates to trust and the token file, from the settings and the files they name.

use std::env::VarError;
use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::header::HeaderValue;

use super::Server;
use super::error::Error;
use crate::blocking_read::BlockingRead;
use crate::client::{Tls, TlsError};
use crate::server_url::ServerUrl;
use crate::text::printable;

/// A valid value of `kubernetes.api-server`.
pub(super) const EXAMPLE: &str = "https://10.0.0.1:6443";
/// The name of the certificates in error messages, with their configuration key.
const CERTIFICATES: &str = "the certificates to trust (kubernetes.ca-file)";
/// The folder of a pod's own certificates and token.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// What a connection needs.
#[derive(Debug, Clone)]
pub(super) struct Endpoint {
    /// Scheme, host and port; no path.
    pub(super) url: ServerUrl,
    pub(super) tls: Tls,
    pub(super) token: Option<TokenFile>,
}

impl Endpoint {
    /// Reads the files that are needed. May block for a long time.
    pub(super) fn read(server: &Server) -> Result<Self, Error> {
        match server {
            Server::InCluster => Self::in_cluster(|name| std::env::var(name), Path::new(SERVICE_ACCOUNT)),
            Server::At { url, token_file, ca_file } => {
                let url = ServerUrl::parse(url, EXAMPLE, "kubernetes.token-file").map_err(Error::Url)?;
                let tls = trusting(&url, ca_file.as_deref(), CERTIFICATES)?;
                let purpose = "the token for the API server (kubernetes.token-file)";
                Ok(Self { url, tls, token: token_file.clone().map(|path| TokenFile { path, purpose }) })
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
        let url = ServerUrl::parse(&server, EXAMPLE, "the pod's token");
        let url = url.and_then(|url| if url.path() == "/" { Ok(url) } else { Err("must have no path".to_owned()) });
        let url = url.map_err(|why| Error::NoServiceAccount(format!("{}: the URL {why}", printable(&server))))?;
        let tls = trusting(&url, Some(&folder.join("ca.crt")), "the certificates to trust");
        let tls = tls.map_err(|error| match error {
            Error::File { kind: ErrorKind::NotFound, .. } => Error::NoServiceAccount(error.to_string()),
            error => error,
        })?;
        let token = Some(TokenFile { path: folder.join("token"), purpose: "the token for the API server" });
        Ok(Self { url, tls, token })
    }

    /// The error for files that could not be read, naming them as precisely as the settings allow.
    pub(super) fn unread(server: &Server, error: &io::Error) -> Error {
        match server {
            Server::InCluster => Error::file(Path::new(SERVICE_ACCOUNT), "the pod's service account", error),
            Server::At { ca_file: Some(path), .. } => Error::file(path, CERTIFICATES, error),
            Server::At { ca_file: None, .. } => Error::NoTrust(error.to_string()),
        }
    }
}

fn trusting(url: &ServerUrl, ca_file: Option<&Path>, purpose: &'static str) -> Result<Tls, Error> {
    let from = ca_file.map(|path| format!("{}: ", printable(&path.to_string_lossy()))).unwrap_or_default();
    Tls::trusting(url, ca_file).map_err(|error| match (error, ca_file) {
        (TlsError::Unreadable(error), Some(path)) => Error::file(path, purpose, &error),
        (error, _) => Error::NoTrust(format!("{from}{error}")),
    })
}

/// The largest token file that is read, in bytes.
const TOKEN_LIMIT: u64 = 64 << 10;

/// The file that holds the token.
#[derive(Debug, Clone)]
pub(super) struct TokenFile {
    pub(super) path: PathBuf,
    /// What the token is for, in the words that error messages use.
    pub(super) purpose: &'static str,
}

impl TokenFile {
    /// The token in the file as an `Authorization` header, without surrounding white space, which hand-written files
    /// often have.
    pub(super) async fn bearer(
        &self,
        read: &BlockingRead<io::Result<String>>,
        limit: Duration,
    ) -> Result<HeaderValue, Error> {
        let failed = |error: io::Error| Error::file(&self.path, self.purpose, &error);
        let invalid = |text| failed(io::Error::new(ErrorKind::InvalidData, text));
        let path = self.path.clone();
        let file = move || {
            let mut text = String::new();
            File::open(path)?.take(TOKEN_LIMIT).read_to_string(&mut text)?;
            Ok(text)
        };
        let text = read.take(limit, file).await.and_then(|text| text).map_err(failed)?;
        if text.trim().is_empty() {
            return Err(invalid("the file is empty"));
        }
        let header = HeaderValue::try_from(format!("Bearer {}", text.trim()));
        let mut header = header.map_err(|_| invalid("it holds no token"))?;
        header.set_sensitive(true);
        Ok(header)
    }
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
            assert_eq!((endpoint.url.is_https(), endpoint.url.authority()), (true, expected));
            assert_eq!(endpoint.token.unwrap().path, folder.path().join("token"));
        }
        let ports = ["", "x", "0", "+443", "0443", "65536", "443:443"].map(|port| ("10.96.0.1", port));
        let hosts = ["", "a b", "me@a", "a/b", "a#", "::1%eth0", "1.2.3"].map(|host| (host, "443"));
        for (host, port) in ports.into_iter().chain(hosts) {
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
