//! PEM text that a web-config file has itself, under a key, or in a file that it names, under the key with `_file`.

use std::path::Path;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::error::Problem;
use super::files::FileReader;

/// PEM text, and the key in the web-config file under which it was given.
pub(super) struct Pem {
    pub(super) key: String,
    pub(super) text: Vec<u8>,
}

/// Where PEM text is given: the key, and the text or the path of its file.
pub(super) enum Given<'a> {
    Inline(String, &'a str),
    File(String, &'a str),
}

impl<'a> Given<'a> {
    /// Where the text is given, if anywhere. As in Go, an empty value is the same as none.
    pub(super) fn find(
        name: &str,
        text: &'a Option<String>,
        file: &'a Option<String>,
    ) -> Result<Option<Self>, Problem> {
        let given = |value: &'a Option<String>| value.as_deref().filter(|value| !value.is_empty());
        let key = format!("tls_server_config.{name}");
        Ok(match (given(text), given(file)) {
            (Some(_), Some(_)) => return Err(Problem::refused(&key, format!("is given together with {key}_file"))),
            (Some(text), None) => Some(Self::Inline(key, text)),
            (None, Some(path)) => Some(Self::File(key + "_file", path)),
            (None, None) => None,
        })
    }

    /// Relative paths are relative to the web-config file's folder.
    pub(super) fn read(self, folder: &Path, files: &mut FileReader) -> Result<Pem, Problem> {
        Ok(match self {
            Self::Inline(key, text) => Pem { key, text: text.as_bytes().to_vec() },
            Self::File(key, path) => Pem { text: files.read_named(&key, &folder.join(path))?, key },
        })
    }
}

impl Pem {
    /// The certificates in the text, at least one.
    pub(super) fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, Problem> {
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.text).collect();
        let certificates = certificates.map_err(|error| Problem::refused(&self.key, error.to_string()))?;
        if certificates.is_empty() {
            return Err(Problem::refused(&self.key, "contains no certificate in PEM"));
        }
        Ok(certificates)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ca_file_contains_a_certificate() {
        for text in [&b""[..], b"junk", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"] {
            let pem = Pem { key: "tls_server_config.client_ca_file".to_owned(), text: text.to_owned() };
            let why = pem.certificates().unwrap_err().to_string();
            assert!(why.ends_with("contains no certificate in PEM"), "{why}");
        }
    }
}
