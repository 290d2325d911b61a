//! How a server is asked, from a file in the format of promtool's HTTP client configuration: a password or a token,
//! certificates, and headers, such as the tenant's.
//!
//! Invariants: the contents of secrets never appear in a message; a key that this program does not implement is an error,
//! never ignored.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, CONTENT_LENGTH, HOST, HeaderName, HeaderValue, TRANSFER_ENCODING};
use rustls::pki_types::ServerName;
use serde::Deserialize;
use serde_saphyr::{MessageFormatter as _, UserMessageFormatter};
use text_and_sizes::text::untrusted;

use crate::server_url::ServerUrl;
use crate::tls::{Error as TlsError, Tls};
use crate::{QUOTED, regular_file};

/// The largest file that is read, in bytes.
const LIMIT: u64 = 1 << 20;

/// Why a server cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be used.
    #[error("{} cannot be used: {why}", path.display())]
    File {
        /// The path of the file.
        path: PathBuf,
        /// What is wrong, without a secret.
        why: String,
    },
    /// The system has no certificates to trust.
    #[error(transparent)]
    Trust(TlsError),
}

/// How a server is asked.
#[derive(Debug)]
pub(crate) struct Access {
    pub(crate) headers: HeaderMap,
    pub(crate) tls: Tls,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Document {
    basic_auth: Option<BasicAuth>,
    authorization: Option<Authorization>,
    bearer_token: Option<String>,
    bearer_token_file: Option<PathBuf>,
    tls_config: TlsConfig,
    http_headers: BTreeMap<String, Header>,
    follow_redirects: bool,
    /// Without a meaning here: the requests are sent one after the other, with HTTP/1.1.
    #[serde(rename = "enable_http2")]
    _enable_http2: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct BasicAuth {
    username: Option<String>,
    username_file: Option<PathBuf>,
    password: Option<String>,
    password_file: Option<PathBuf>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Authorization {
    r#type: Option<String>,
    credentials: Option<String>,
    credentials_file: Option<PathBuf>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct TlsConfig {
    ca_file: Option<PathBuf>,
    cert_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
    server_name: Option<String>,
    insecure_skip_verify: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Header {
    values: Vec<String>,
    secrets: Vec<String>,
    files: Vec<PathBuf>,
}

/// Limits that an alias bomb exceeds.
fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: 16,
            flow_nesting_limit: 16,
            max_nodes: 10_000,
            max_events: 30_000,
            max_aliases: 32,
            max_anchors: 32,
            max_total_scalar_bytes: 1 << 20,
            max_merge_keys: 16,
            max_documents: 1,
        },
        // The lines around an error could show a password.
        with_snippet: false,
    }
}

impl Access {
    /// Reads the file and those that it names, relative to its folder. Without a file, a server is asked without a password,
    /// and the certificates of the system are trusted.
    pub(crate) fn read(server: &ServerUrl, path: Option<&Path>) -> Result<Self, Error> {
        let Some(path) = path else {
            let tls = Tls::trusting(server, None).map_err(Error::Trust)?;
            return Ok(Self { headers: HeaderMap::new(), tls });
        };
        let file = File(path);
        let content = text(path)?;
        let document: Option<Document> = serde_saphyr::from_str_with_options(&content, options()).map_err(|error| {
            let line = error.location().map(|location| format!("line {}: ", location.line())).unwrap_or_default();
            file.wrong(format!("{line}{}", untrusted(&UserMessageFormatter.format_message(&error), QUOTED)))
        })?;
        let document = document.unwrap_or_default();
        if document.follow_redirects {
            return Err(file.wrong("follow_redirects: redirects are never followed; name the server's own URL"));
        }
        let tls = file.tls(server, &document.tls_config)?;
        Ok(Self { headers: file.headers(document)?, tls })
    }
}

fn unusable(path: &Path, why: impl ToString) -> Error {
    Error::File { path: path.to_owned(), why: why.to_string() }
}

fn text(path: &Path) -> Result<String, Error> {
    let content = regular_file::read(path, LIMIT).map_err(|error| unusable(path, error))?;
    String::from_utf8(content).map_err(|_| unusable(path, "it is not UTF-8 text"))
}

/// A header's value that is not shown in messages.
fn secret(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// The path of the configuration.
struct File<'a>(&'a Path);

impl File<'_> {
    fn wrong(&self, why: impl ToString) -> Error {
        unusable(self.0, why)
    }

    /// Another file, relative to the folder of this one.
    fn at(&self, path: &Path) -> PathBuf {
        self.0.parent().unwrap_or(Path::new("")).join(path)
    }

    /// A value that is given itself or by its file, without the white space around the file's text; an error if both are.
    fn either(&self, name: &str, value: Option<String>, file: Option<PathBuf>) -> Result<Option<String>, Error> {
        match (value, file) {
            (Some(_), Some(_)) => Err(self.wrong(format!("at most one of {name} and {name}_file can be set"))),
            (None, Some(file)) => Ok(Some(text(&self.at(&file))?.trim().to_owned())),
            (value, None) => Ok(value),
        }
    }

    fn tls(&self, server: &ServerUrl, config: &TlsConfig) -> Result<Tls, Error> {
        if config.insecure_skip_verify {
            let why = "tls_config.insecure_skip_verify is not supported: name the server's certificate with ca_file";
            return Err(self.wrong(why));
        }
        let name = config.server_name.clone().map(ServerName::try_from);
        let name = name.transpose().map_err(|_| self.wrong("tls_config.server_name is not a host name"))?;
        let ca_file = config.ca_file.as_ref().map(|path| self.at(path));
        let tls = Tls::trusting(server, ca_file.as_deref()).map_err(|error| match &ca_file {
            Some(path) => unusable(path, error),
            None => Error::Trust(error),
        })?;
        let tls = tls.named(name);
        match (&config.cert_file, &config.key_file) {
            (Some(cert), Some(key)) => {
                tls.presenting(&self.at(cert), &self.at(key)).map_err(|(path, error)| unusable(path, error))
            }
            (None, None) => Ok(tls),
            _ => Err(self.wrong("tls_config: cert_file and key_file must be set together")),
        }
    }

    fn headers(&self, document: Document) -> Result<HeaderMap, Error> {
        let written = document.http_headers;
        let mut headers = HeaderMap::new();
        let ways = self.authorizations(document.basic_auth, document.authorization)?;
        let bearer = self.either("bearer_token", document.bearer_token, document.bearer_token_file)?;
        let bearer = bearer.map(|token| ("bearer_token", secret(&format!("Bearer {token}"))));
        let mut ways = ways.into_iter().chain(bearer);
        if let Some((key, value)) = ways.next() {
            let value = value.ok_or_else(|| self.wrong(format!("{key} cannot be sent in a header")))?;
            headers.insert(AUTHORIZATION, value);
        }
        if ways.next().is_some() {
            return Err(self.wrong("at most one of basic_auth, authorization and bearer_token can be set"));
        }
        for (name, header) in written {
            let name = HeaderName::try_from(&name)
                .map_err(|_| self.wrong("http_headers: a name is not the name of a header"))?;
            if [HOST, CONTENT_LENGTH, TRANSFER_ENCODING].contains(&name) {
                return Err(self.wrong(format!("http_headers: {name} cannot be set")));
            }
            if name == AUTHORIZATION && headers.contains_key(AUTHORIZATION) {
                let others = "basic_auth, authorization or bearer_token";
                return Err(self.wrong(format!("http_headers: authorization cannot be set together with {others}")));
            }
            let files = header.files.into_iter().map(|file| self.either("files", None, Some(file)));
            let files = files.collect::<Result<Vec<_>, _>>()?.into_iter().flatten();
            for value in header.values.into_iter().chain(header.secrets).chain(files) {
                let value = secret(&value)
                    .ok_or_else(|| self.wrong(format!("http_headers: a value of {name} cannot be sent")))?;
                headers.append(name.clone(), value);
            }
        }
        Ok(headers)
    }

    /// The keys that give the header `Authorization`, and its value; `None` if it cannot be sent.
    fn authorizations(
        &self,
        basic_auth: Option<BasicAuth>,
        token: Option<Authorization>,
    ) -> Result<Vec<(&'static str, Option<HeaderValue>)>, Error> {
        let mut ways = Vec::new();
        if let Some(given) = basic_auth {
            let user = self.either("basic_auth.username", given.username, given.username_file)?;
            let password = self.either("basic_auth.password", given.password, given.password_file)?;
            let pair = format!("{}:{}", user.unwrap_or_default(), password.unwrap_or_default());
            ways.push(("basic_auth", secret(&format!("Basic {}", BASE64_STANDARD.encode(pair)))));
        }
        if let Some(given) = token {
            let kind = given.r#type.as_deref().unwrap_or("Bearer").trim();
            if kind.eq_ignore_ascii_case("basic") {
                return Err(self.wrong("authorization.type cannot be Basic; use basic_auth"));
            }
            let credentials = self.either("authorization.credentials", given.credentials, given.credentials_file)?;
            let missing = || self.wrong("authorization needs credentials or credentials_file");
            ways.push(("authorization", secret(&format!("{kind} {}", credentials.ok_or_else(missing)?))));
        }
        Ok(ways)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn given(text: &str) -> Result<Access, Error> {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("secret"), "se:cret\n").unwrap();
        fs::write(folder.path().join("config.yml"), text).unwrap();
        Access::read(&server(), Some(&folder.path().join("config.yml")))
    }

    fn server() -> ServerUrl {
        ServerUrl::parse("http://a", "", "").unwrap()
    }

    fn header(access: &Access, name: &str) -> Vec<String> {
        access.headers.get_all(name).iter().map(|value| value.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn passwords_and_tokens_become_one_header() {
        for (text, sent) in [
            ("basic_auth:\n  username: ada\n  password: secret\n", "Basic YWRhOnNlY3JldA=="),
            ("basic_auth:\n  username: ada\n  password: p@ss:wörd\n", "Basic YWRhOnBAc3M6d8O2cmQ="),
            ("basic_auth:\n  username: ada\n  password_file: secret\n", "Basic YWRhOnNlOmNyZXQ="),
            ("basic_auth:\n  username_file: secret\n", "Basic c2U6Y3JldDo="),
            ("authorization:\n  credentials: abc\n", "Bearer abc"),
            ("authorization:\n  type: Token\n  credentials_file: secret\n", "Token se:cret"),
            ("bearer_token_file: secret\n", "Bearer se:cret"),
        ] {
            let access = given(text).unwrap();
            assert_eq!(header(&access, "authorization"), [sent], "{text}");
            assert!(!format!("{access:?}").contains(sent.split(' ').nth(1).unwrap()), "{access:?}");
        }
    }

    #[test]
    fn tenants_headers_and_certificates_are_read() {
        let access = given(
            "http_headers:\n  X-Scope-OrgID:\n    values: [a|b]\n  X-Key:\n    secrets: [k]\n    files: [secret]\n\
             tls_config: {ca_file: ca.crt, server_name: prom.example}\nfollow_redirects: false\nenable_http2: true\n",
        )
        .unwrap();
        assert_eq!(header(&access, "x-scope-orgid"), ["a|b"]);
        assert_eq!(header(&access, "x-key"), ["k", "se:cret"]);
        assert!(format!("{:?}", access.tls).contains("prom.example"), "{:?}", access.tls);
        assert!(given("").unwrap().headers.is_empty());
        let secured = ServerUrl::parse("https://a", "", "").unwrap();
        for (file, unusable) in [("ca_file: secret", "/secret"), ("cert_file: /c, key_file: k", "/c")] {
            let folder = tempfile::tempdir().unwrap();
            fs::write(folder.path().join("secret"), "se:cret\n").unwrap();
            fs::write(folder.path().join("config.yml"), format!("tls_config: {{{file}}}\n")).unwrap();
            let why = Access::read(&secured, Some(&folder.path().join("config.yml"))).unwrap_err().to_string();
            assert!(why.contains(&format!("{unusable} cannot be used")), "{file}: {why}");
        }
    }

    #[test]
    fn what_cannot_be_used_is_named_without_its_secrets() {
        for (text, says) in [
            ("oauth2:\n  client_id: a\n", "oauth2"),
            ("basic_auth:\n  user: hidden\n", "user"),
            ("basic_auth: hidden\n", "line 1"),
            ("basic_auth:\n  password: hidden\n  password_file: secret\n", "password_file"),
            ("basic_auth: {username: a}\nauthorization: {credentials: hidden}\n", "at most one"),
            ("authorization: {type: basic, credentials: hidden}\n", "basic_auth"),
            ("authorization: {type: Bearer}\n", "credentials_file"),
            ("authorization:\n  credentials: \"hid\\nden\"\n", "authorization"),
            ("basic_auth: {username: a, password_file: none}\n", "none"),
            ("tls_config: {insecure_skip_verify: true}\n", "ca_file"),
            ("tls_config: {cert_file: a}\n", "key_file"),
            ("tls_config: {server_name: 'a b'}\n", "server_name"),
            ("follow_redirects: true\n", "follow_redirects"),
            ("http_headers: {Host: {values: [hidden]}}\n", "host"),
            (
                "basic_auth: {username: a}\nhttp_headers: {Authorization: {values: [hidden]}}\n",
                "together with basic_auth",
            ),
            ("http_headers: {'a b': {values: [hidden]}}\n", "http_headers"),
            ("http_headers: {A: {values: [\"hid\\nden\"]}}\n", "value of a"),
        ] {
            let why = given(text).unwrap_err().to_string();
            assert!(why.contains(says) && why.contains("cannot be used"), "{text}: {why}");
            assert!(!why.contains("hid") && !why.contains('\n'), "{why}");
        }
        assert!(Access::read(&server(), Some(Path::new("/nonexistent"))).is_err());
    }
}
