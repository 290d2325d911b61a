//! The TLS settings: certificate and key, versions and suites, and what clients must present.
//!
//! Invariant: every value of `tls_server_config` is in effect, mentioned in a note, or refused. The cryptography
//! provider is passed explicitly and is never the process's default.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::{Error as PemError, PemObject as _};
use rustls::server::{NoServerSessionStorage, WantsServerCert};
use rustls::{ConfigBuilder, Error, ServerConfig};

use super::client::{self, ClientAuth};
use super::document::Tls;
use super::error::Problem;
use super::files::FileReader;
use super::suites;

/// PEM text, and the key in the web-config file under which it was given.
struct Pem {
    key: &'static str,
    text: Vec<u8>,
}

/// The two keys under which PEM text may be given: inline, or as a file.
struct PemKeys {
    inline: &'static str,
    file: &'static str,
}

const CERT: PemKeys = PemKeys { inline: "tls_server_config.cert", file: "tls_server_config.cert_file" };
const KEY: PemKeys = PemKeys { inline: "tls_server_config.key", file: "tls_server_config.key_file" };
const CA: PemKeys = PemKeys { inline: "tls_server_config.client_ca", file: "tls_server_config.client_ca_file" };

impl PemKeys {
    /// Where the text is given, if anywhere. As in Go, an empty value is the same as none.
    fn find<'a>(&self, inline: Option<&'a String>, file: Option<&'a String>) -> Result<Option<PemSource<'a>>, Problem> {
        let given = |value: Option<&'a String>| value.map(String::as_str).filter(|value| !value.is_empty());
        match (given(inline), given(file)) {
            (Some(_), Some(_)) => Err(Problem::refused(self.inline, format!("is given together with {}", self.file))),
            (Some(text), None) => Ok(Some(PemSource::Inline(self.inline, text))),
            (None, Some(path)) => Ok(Some(PemSource::File(self.file, path))),
            (None, None) => Ok(None),
        }
    }

    fn missing(&self) -> Problem {
        let name = |key: &'static str| key.rsplit('.').next().unwrap_or(key);
        let why = format!("one of {} and {} is missing", name(self.inline), name(self.file));
        Problem::refused("tls_server_config", why)
    }
}

enum PemSource<'a> {
    Inline(&'static str, &'a str),
    File(&'static str, &'a str),
}

impl PemSource<'_> {
    /// Relative paths are relative to the web-config file's folder.
    fn read(&self, folder: &Path, files: &mut FileReader) -> Result<Pem, Problem> {
        match *self {
            Self::Inline(key, text) => Ok(Pem { key, text: text.as_bytes().to_vec() }),
            Self::File(key, path) => Ok(Pem { key, text: files.read_named(key, &folder.join(path))? }),
        }
    }
}

/// What a non-empty `tls_server_config` specifies: the settings for connections, and what clients must present.
pub(super) fn server_config(
    tls: &Tls,
    http2: bool,
    folder: &Path,
    files: &mut FileReader,
    notes: &mut Vec<String>,
) -> Result<(ServerConfig, ClientAuth), Problem> {
    let certificate = CERT.find(tls.cert.as_ref(), tls.cert_file.as_ref())?.ok_or_else(|| CERT.missing())?;
    let key = KEY.find(tls.key.as_ref(), tls.key_file.as_ref())?.ok_or_else(|| KEY.missing())?;
    let ca = CA.find(tls.client_ca.as_ref(), tls.client_ca_file.as_ref())?;
    let certificate = certificate.read(folder, files)?;
    let key = key.read(folder, files)?;
    let ca_given = ca.is_some();
    let ca = ca.map(|ca| ca.read(folder, files)).transpose();
    // Checked before the CAs are read: a missing policy makes for a more helpful message than an invalid CA file.
    let auth = client::policy(tls, ca_given, notes)?;
    let ca = ca?;
    let versions = suites::versions(tls)?;
    let provider = Arc::new(suites::provider(tls, http2, notes)?);
    let ca = ca.as_ref().map(|ca| (ca.key, ca.text.as_slice()));
    let verifier = client::verifier(auth, ca, tls.client_allowed_sans.clone(), &provider)?;
    let refused = |error: Error| Problem::refused("tls_server_config", error.to_string());
    let builder = ServerConfig::builder_with_provider(provider).with_protocol_versions(&versions).map_err(refused)?;
    let builder = match verifier {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let mut config = identity(builder, &certificate, &key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.ignore_client_order = tls.prefer_server_cipher_suites.unwrap_or(true);
    // A resumed session would admit a client whose certificate has since expired.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok((config, auth))
}

fn identity(
    builder: ConfigBuilder<ServerConfig, WantsServerCert>,
    certificate: &Pem,
    key: &Pem,
) -> Result<ServerConfig, Problem> {
    let chain = client::certificates(certificate.key, &certificate.text)?;
    let private = PrivateKeyDer::from_pem_slice(&key.text).map_err(|error| {
        let none = "contains no private key in PEM; an encrypted one is not supported";
        let why = if matches!(error, PemError::NoItemsFound) { none.to_owned() } else { error.to_string() };
        Problem::refused(key.key, why)
    })?;
    builder.with_single_cert(chain, private).map_err(|error| match error {
        Error::InconsistentKeys(_) => Problem::refused(key.key, "is not the key of the certificate"),
        Error::InvalidCertificate(_) => Problem::refused(certificate.key, error.to_string()),
        _ => Problem::refused(key.key, error.to_string()),
    })
}
