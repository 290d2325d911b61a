//! Any web-config file: it is accepted as a whole, or refused in one line that names the file and shows no secret. And
//! any `Authorization` header: name and password are read as they were written.

mod arbitrary;

use std::path::Path;
use std::sync::LazyLock;

use axum::http::{HeaderMap, HeaderValue, header};

use web_config::internals::Credentials;
use web_config::{Error, Guard};

use crate::choices::choices;

/// The longest refusal in bytes: the file, the position and the reason.
const LONGEST_LINE: usize = 1_500;
/// The end of every generated hash. No message may show it.
const SECRET: &str = "Kq9SecretSecretSecretSecretSecq";

/// The folder that contains the file. Each run writes the file again.
static FOLDER: LazyLock<tempfile::TempDir> =
    LazyLock::new(|| tempfile::tempdir().expect("a small file can be written"));

/// Loads a web-config file. True if it is accepted.
pub fn web_config(data: &[u8]) -> bool {
    let generated = choices(data).map(|mut u| arbitrary::file(&mut u));
    let text = generated.as_deref().unwrap_or(data);
    // `SECRET` is secret only as part of a hash. Input that contains it may use it as an unknown key, which an error
    // may show.
    let secret =
        (generated.is_some() && !data.windows(SECRET.len()).any(|part| part == SECRET.as_bytes())).then_some(SECRET);
    let file = FOLDER.path().join(format!("web-{}.yml", std::process::id()));
    std::fs::write(&file, text).expect("a small file can be written");
    match Guard::check(&file) {
        Ok(summary) => {
            assert_one_line(&summary.to_string(), secret);
            summary.notes.iter().for_each(|note| assert_one_line(note, secret));
            let guard = Guard::open(Some(&file), |_| ()).expect("the check has accepted it");
            assert_eq!(guard.summary(), summary, "check and open differ");
            assert_eq!(guard.headers().len(), summary.headers);
            assert!(guard.headers().iter().all(|(_, value)| value.to_str().is_ok_and(|text| !text.is_empty())));
            assert_eq!(guard.tls().is_some(), summary.client_auth.is_some());
            assert!(matches!(guard.reload(), Ok(false)), "nothing has changed");
            true
        }
        Err(error) => {
            assert_refusal(&error, &file, secret);
            false
        }
    }
}

fn assert_refusal(error: &Error, file: &Path, secret: Option<&str>) {
    let line = error.to_string();
    let why = line.strip_prefix(&format!("{}: ", file.display())).expect("a refusal names the file");
    assert!(why.split_whitespace().count() >= 3, "{line}");
    assert_one_line(&line, secret);
}

fn assert_one_line(line: &str, secret: Option<&str>) {
    assert!(!line.is_empty() && line.len() <= LONGEST_LINE, "{} bytes: {line}", line.len());
    assert!(!line.contains(char::is_control), "{line:?}");
    assert!(secret.is_none_or(|secret| !line.contains(secret)), "a secret is shown: {line}");
}

/// Reads an `Authorization` header. True if it contains a name and a password.
pub fn credentials(data: &[u8]) -> bool {
    let given = |value: &[u8]| {
        let value = HeaderValue::from_bytes(value).ok()?;
        Credentials::from_headers(&HeaderMap::from_iter([(header::AUTHORIZATION, value)]))
    };
    let found = given(data);
    // The same bytes, correctly encoded, are read back unchanged.
    let user: Vec<u8> = data.iter().copied().filter(|byte| *byte != b':').collect();
    for password in [data, b""] {
        let header = [b"Basic ", arbitrary::base64(&[&user, &b":"[..], password].concat()).as_bytes()].concat();
        let again = given(&header).expect("a well-formed header is read");
        assert!(again.user == user && again.password == password);
    }
    match found {
        Some(found) => {
            assert!(!found.user.contains(&b':') && found.user.len() + found.password.len() < data.len());
            let written = arbitrary::base64(&[&found.user, &b":"[..], &found.password].concat());
            // The last digit before the padding may contain unused bits.
            let same = data[6..].iter().zip(written.bytes()).filter(|(a, b)| **a != *b).count();
            assert!(data.len() == 6 + written.len() && same <= 1);
            true
        }
        None => false,
    }
}
