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
use super::pem::{Given, Pem};
use super::suites;

/// What a non-empty `tls_server_config` specifies: the settings for connections, and what clients must present.
pub(super) fn server_config(
    tls: &Tls,
    http2: bool,
    folder: &Path,
    files: &mut FileReader,
    notes: &mut Vec<String>,
) -> Result<(ServerConfig, ClientAuth), Problem> {
    let missing =
        |name| move || Problem::refused("tls_server_config", format!("one of {name} and {name}_file is missing"));
    let certificate = Given::find("cert", &tls.cert, &tls.cert_file)?.ok_or_else(missing("cert"))?;
    let key = Given::find("key", &tls.key, &tls.key_file)?.ok_or_else(missing("key"))?;
    let ca = Given::find("client_ca", &tls.client_ca, &tls.client_ca_file)?;
    let certificate = certificate.read(folder, files)?;
    let key = key.read(folder, files)?;
    let ca_given = ca.is_some();
    let ca = ca.map(|ca| ca.read(folder, files)).transpose();
    // Checked before the CAs are read: a missing policy makes for a more helpful message than an invalid CA file.
    let auth = client::policy(tls, ca_given, notes)?;
    let versions = suites::versions(tls)?;
    let provider = Arc::new(suites::provider(tls, http2, notes)?);
    let verifier = client::verifier(auth, ca?.as_ref(), tls.client_allowed_sans.clone(), &provider)?;
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
    let chain = certificate.certificates()?;
    let private = PrivateKeyDer::from_pem_slice(&key.text).map_err(|error| {
        let none = "contains no private key in PEM; an encrypted one is not supported";
        let why = if matches!(error, PemError::NoItemsFound) { none.to_owned() } else { error.to_string() };
        Problem::refused(&key.key, why)
    })?;
    builder.with_single_cert(chain, private).map_err(|error| match error {
        Error::InconsistentKeys(_) => Problem::refused(&key.key, "is not the key of the certificate"),
        Error::InvalidCertificate(_) => Problem::refused(&certificate.key, error.to_string()),
        _ => Problem::refused(&key.key, error.to_string()),
    })
}
