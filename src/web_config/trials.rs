//! What holds of a web-config file whatever is in it: it is taken whole, or refused in one line that names the file and
//! shows no secret. And what holds of the passwords that clients give.

mod made;

use std::path::Path;
use std::sync::{Arc, LazyLock};

use axum::http::{HeaderMap, HeaderValue, header};

use super::credentials::Credentials;
use super::{Guard, WebConfigError};
use crate::faults::Faults;
use crate::trials::Pieces;

/// The longest refusal: a name, a place, and what is wrong.
const LONGEST_LINE: usize = 1_500;
/// The end of every hash that is made here. No message may show it.
const SECRET: &str = "Kq9SecretSecretSecretSecretSecq";

/// Where the file of a trial lies; made once, written anew each time.
static FOLDER: LazyLock<tempfile::TempDir> =
    LazyLock::new(|| tempfile::tempdir().expect("there is room for a small file"));

/// Reads a web-config file. True where it is taken.
pub fn web_config(data: &[u8]) -> bool {
    let made = Pieces::of(data).map(|mut pieces| made::file(&mut pieces));
    let text = made.as_deref().unwrap_or(data);
    // A secret is one where it stands as a hash alone: a key that does not exist may be shown.
    let secret =
        (made.is_some() && !data.windows(SECRET.len()).any(|part| part == SECRET.as_bytes())).then_some(SECRET);
    let file = FOLDER.path().join(format!("web-{}.yml", std::process::id()));
    std::fs::write(&file, text).expect("there is room for a small file");
    match Guard::check(&file) {
        Ok(summary) => {
            assert_one_line(&summary.to_string(), secret);
            summary.notes.iter().for_each(|note| assert_one_line(note, secret));
            let guard = Guard::open(Some(&file), Arc::new(Faults::default())).expect("it was good just now");
            assert_eq!(guard.summary(), summary, "another judgement of the same file");
            assert_eq!(guard.headers().len(), summary.headers);
            assert!(guard.headers().iter().all(|(_, value)| value.to_str().is_ok_and(|text| !text.is_empty())));
            assert_eq!(guard.tls().is_some(), summary.client_auth.is_some());
            assert!(matches!(guard.reread(), Ok(false)), "nothing has changed");
            true
        }
        Err(error) => {
            assert_told(&error, &file, secret);
            false
        }
    }
}

fn assert_told(error: &WebConfigError, file: &Path, secret: Option<&str>) {
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

/// Reads what a client says of itself. True where it is a name and a password.
pub fn credentials(data: &[u8]) -> bool {
    let given = |value: &[u8]| {
        let value = HeaderValue::from_bytes(value).ok()?;
        Credentials::from_headers(&HeaderMap::from_iter([(header::AUTHORIZATION, value)]))
    };
    let found = given(data);
    // The same bytes, written as they should be, come back as they were.
    let user: Vec<u8> = data.iter().copied().filter(|byte| *byte != b':').collect();
    for password in [data, b""] {
        let header = [b"Basic ", made::base64(&[&user, &b":"[..], password].concat()).as_bytes()].concat();
        let again = given(&header).expect("what is well formed is read");
        assert!(again.user == user && again.password == password);
    }
    match found {
        Some(found) => {
            assert!(!found.user.contains(&b':') && found.user.len() + found.password.len() < data.len());
            let written = made::base64(&[&found.user, &b":"[..], &found.password].concat());
            // The last digit before the padding may hold bits that mean nothing.
            let same = data[6..].iter().zip(written.bytes()).filter(|(a, b)| **a != *b).count();
            assert!(data.len() == 6 + written.len() && same <= 1);
            true
        }
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use crate::trials::drive;

    const ROOT: &str = env!("CARGO_MANIFEST_DIR");

    #[test]
    fn a_web_config_is_taken_whole_or_refused_in_a_line() {
        let taken = drive(ROOT, "web_config", 1_000, super::web_config);
        assert!(taken > 80, "{taken} taken");
    }

    #[test]
    fn a_name_and_a_password_come_back_as_they_were() {
        let read = drive(ROOT, "credentials", 1_000, super::credentials);
        assert!(read > 30, "{read} read");
    }
}
