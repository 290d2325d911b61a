//! The file of `--http-config`, in the format of promtool's HTTP client configuration: a password or a token, certificates,
//! and headers, such as the tenant's.
//!
//! Invariants: the contents of secrets never appear in a message; a key that this program does not implement is an error,
//! never ignored.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HeaderName, HeaderValue};
use rustls::pki_types::ServerName;
use serde::Deserialize;
use serde_saphyr::{MessageFormatter as _, UserMessageFormatter};
use text_and_sizes::text::untrusted;
use vram_exporter::subcommand::MESSAGE;
use web_client::regular_file;

/// The largest file that is read, in bytes.
const LIMIT: u64 = 1 << 20;

/// Why the configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{} cannot be used: {why}", path.display())]
pub(super) struct Error {
    path: PathBuf,
    why: String,
}

/// How to connect.
#[derive(Debug, Default)]
pub(super) struct Access {
    pub(super) headers: HeaderMap,
    pub(super) ca_file: Option<PathBuf>,
    /// The files of the client's certificate and its key.
    pub(super) identity: Option<(PathBuf, PathBuf)>,
    /// The name in the server's certificate; `None`: the host of the URL.
    pub(super) server_name: Option<ServerName<'static>>,
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
    username: String,
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

/// Reads the file and those that it names, relative to its folder.
pub(super) fn read(path: &Path) -> Result<Access, Error> {
    let wrong = |why: String| Error { path: path.to_owned(), why };
    let content = regular_file::read(path, LIMIT).map_err(|error| wrong(error.to_string()))?;
    let text = str::from_utf8(&content).map_err(|_| wrong("it is not UTF-8 text".to_owned()))?;
    let document: Option<Document> = serde_saphyr::from_str_with_options(text, options()).map_err(|error| {
        let line = error.location().map(|location| format!("line {}: ", location.line())).unwrap_or_default();
        wrong(format!("{line}{}", untrusted(&UserMessageFormatter.format_message(&error), MESSAGE)))
    })?;
    let files = Files { folder: path.parent().unwrap_or(Path::new("")) };
    access(document.unwrap_or_default(), &files).map_err(|failed| match failed {
        Failed::File(path, why) => Error { path, why },
        Failed::Key(why) => wrong(why),
    })
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

/// What is wrong: another file, or a key of this one.
enum Failed {
    File(PathBuf, String),
    Key(String),
}

fn key(why: &str) -> Failed {
    Failed::Key(why.to_owned())
}

struct Files<'a> {
    folder: &'a Path,
}

impl Files<'_> {
    fn at(&self, path: &Path) -> PathBuf {
        self.folder.join(path)
    }

    /// The text of a file without the white space around it.
    fn text(&self, path: &Path) -> Result<String, Failed> {
        let path = self.at(path);
        let content =
            regular_file::read(&path, LIMIT).map_err(|error| Failed::File(path.clone(), error.to_string()))?;
        let text = String::from_utf8(content).map_err(|_| Failed::File(path, "it is not UTF-8 text".to_owned()))?;
        Ok(text.trim().to_owned())
    }

    /// A value that is given itself or by its file; an error if both are.
    fn either(&self, name: &str, value: Option<String>, file: Option<PathBuf>) -> Result<Option<String>, Failed> {
        match (value, file) {
            (Some(_), Some(_)) => Err(key(&format!("at most one of {name} and {name}_file can be set"))),
            (None, Some(file)) => self.text(&file).map(Some),
            (value, None) => Ok(value),
        }
    }
}

fn access(document: Document, files: &Files<'_>) -> Result<Access, Failed> {
    if document.follow_redirects {
        return Err(key("follow_redirects: redirects are never followed; name the server's own URL"));
    }
    let tls = document.tls_config;
    if tls.insecure_skip_verify {
        return Err(key(
            "tls_config.insecure_skip_verify is not supported: name the server's certificate with ca_file",
        ));
    }
    let identity = match (tls.cert_file, tls.key_file) {
        (Some(cert), Some(key)) => Some((files.at(&cert), files.at(&key))),
        (None, None) => None,
        _ => return Err(key("tls_config: cert_file and key_file must be set together")),
    };
    let server_name = tls.server_name.map(ServerName::try_from);
    let server_name = server_name.transpose().map_err(|_| key("tls_config.server_name is not a host name"))?;
    let mut headers = HeaderMap::new();
    let authorization = authorization(
        document.basic_auth,
        document.authorization,
        (document.bearer_token, document.bearer_token_file),
        files,
    )?;
    if let Some(value) = authorization {
        headers.insert(AUTHORIZATION, value);
    }
    for (name, header) in document.http_headers {
        let parsed =
            HeaderName::try_from(&name).map_err(|_| key("http_headers: a name is not the name of a header"))?;
        if [hyper::header::HOST, hyper::header::CONTENT_LENGTH, hyper::header::TRANSFER_ENCODING].contains(&parsed) {
            return Err(Failed::Key(format!("http_headers: {parsed} cannot be set")));
        }
        if parsed == AUTHORIZATION && headers.contains_key(AUTHORIZATION) {
            return Err(key(
                "http_headers: authorization cannot be set together with basic_auth, authorization or bearer_token",
            ));
        }
        let from_files = header.files.iter().map(|file| files.text(file)).collect::<Result<Vec<_>, _>>()?;
        for value in header.values.into_iter().chain(header.secrets).chain(from_files) {
            let value = secret(&value)
                .ok_or_else(|| Failed::Key(format!("http_headers: a value of {parsed} cannot be sent")))?;
            headers.append(parsed.clone(), value);
        }
    }
    Ok(Access { headers, ca_file: tls.ca_file.map(|path| files.at(&path)), identity, server_name })
}

/// The header `Authorization`; at most one of the three ways can be used.
fn authorization(
    basic: Option<BasicAuth>,
    token: Option<Authorization>,
    (bearer, bearer_file): (Option<String>, Option<PathBuf>),
    files: &Files<'_>,
) -> Result<Option<HeaderValue>, Failed> {
    let bearer = files.either("bearer_token", bearer, bearer_file)?;
    match (basic, token, bearer) {
        (None, None, None) => Ok(None),
        (Some(basic), None, None) => {
            let named = Some(basic.username).filter(|name| !name.is_empty());
            let user = files.either("basic_auth.username", named, basic.username_file)?.unwrap_or_default();
            let password = files.either("basic_auth.password", basic.password, basic.password_file)?;
            let value = web_client::basic(format!("{user}:{}", password.unwrap_or_default()).as_bytes());
            value.map(Some).ok_or_else(|| key("basic_auth cannot be sent in a header"))
        }
        (None, Some(token), None) => {
            let kind = token.r#type.unwrap_or_else(|| "Bearer".to_owned());
            if kind.trim().eq_ignore_ascii_case("basic") {
                return Err(key("authorization.type cannot be Basic; use basic_auth"));
            }
            let credentials = files.either("authorization.credentials", token.credentials, token.credentials_file)?;
            let credentials = credentials.ok_or_else(|| key("authorization needs credentials or credentials_file"))?;
            let value = secret(&format!("{} {credentials}", kind.trim()));
            value.map(Some).ok_or_else(|| key("authorization cannot be sent in a header"))
        }
        (None, None, Some(bearer)) => {
            secret(&format!("Bearer {bearer}")).map(Some).ok_or_else(|| key("bearer_token cannot be sent in a header"))
        }
        _ => Err(key("at most one of basic_auth, authorization and bearer_token can be set")),
    }
}

/// A header's value that is not shown in messages.
fn secret(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn given(text: &str) -> Result<Access, Error> {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("secret"), "se:cret\n").unwrap();
        fs::write(folder.path().join("config.yml"), text).unwrap();
        read(&folder.path().join("config.yml"))
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
             tls_config:\n  ca_file: ca.crt\n  cert_file: /c\n  key_file: k\n  server_name: prom.example\n\
             follow_redirects: false\nenable_http2: true\n",
        )
        .unwrap();
        assert_eq!(header(&access, "x-scope-orgid"), ["a|b"]);
        assert_eq!(header(&access, "x-key"), ["k", "se:cret"]);
        assert!(access.ca_file.unwrap().ends_with("ca.crt"));
        let (cert, key) = access.identity.unwrap();
        assert!(cert == Path::new("/c") && key.is_absolute() && key.ends_with("k"), "{key:?}");
        assert_eq!(access.server_name.unwrap().to_str(), "prom.example");
        assert!(given("").unwrap().headers.is_empty());
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
        assert!(read(Path::new("/nonexistent")).is_err());
    }
}
