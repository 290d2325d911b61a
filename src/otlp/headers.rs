//! The headers of every request, from a file and from a variable.
//!
//! Invariant: a header is never shown, neither in a log nor in an error, because it may be a secret.

use std::io;
use std::path::Path;

use hyper::HeaderMap;
use hyper::header::{
    CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST, HeaderName, HeaderValue, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};

use super::error::Error;
use super::list;
use super::settings::Settings;
use crate::regular_file;

/// The variable that holds headers.
const VARIABLE: &str = "OTEL_EXPORTER_OTLP_HEADERS";
/// The largest file that is read, in bytes.
const LIMIT: u64 = 64 << 10;
/// Headers that belong to the request itself.
const OWN: [HeaderName; 10] =
    [CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST, TE, TRAILER, TRANSFER_ENCODING, UPGRADE];

/// Reads all headers. Those in the file override those in the variable. May block for a long time.
pub(super) fn read(settings: &Settings) -> Result<HeaderMap, Error> {
    let mut headers = HeaderMap::new();
    if let Some(list) = &settings.headers {
        let invalid = |text| Error::Headers { from: VARIABLE.to_owned(), text };
        for (index, (name, value)) in list::read(list).map_err(invalid)?.into_iter().enumerate() {
            let (name, value) =
                header(&name, &value).map_err(|text| invalid(format!("member {} {text}", index + 1)))?;
            headers.insert(name, value);
        }
    }
    if let Some(path) = &settings.headers_file {
        let invalid = |text| Error::Headers { from: path.display().to_string(), text };
        let text = text(path).map_err(|error| invalid(error.to_string()))?;
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = |text: &str| invalid(format!("line {} {text}", index + 1));
            let (name, value) = line.split_once(':').ok_or_else(|| wrong("is not of the form Name: value"))?;
            let (name, value) = header(name.trim(), value.trim()).map_err(wrong)?;
            headers.insert(name, value);
        }
    }
    Ok(headers)
}

fn text(path: &Path) -> io::Result<String> {
    let content = regular_file::read(path, LIMIT)?;
    String::from_utf8(content).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8"))
}

fn header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), &'static str> {
    let name = HeaderName::try_from(name).map_err(|_| "has a name that is not allowed in HTTP")?;
    if OWN.contains(&name) {
        return Err("names a header that the request sets itself");
    }
    let mut value = HeaderValue::try_from(value).map_err(|_| "has a value that is not allowed in HTTP")?;
    value.set_sensitive(true);
    Ok((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(folder: &Path, file: &str, variable: Option<&str>) -> Settings {
        let path = folder.join("headers");
        std::fs::write(&path, file).unwrap();
        Settings {
            headers_file: Some(path),
            headers: variable.map(str::to_owned),
            ..Settings::for_tests("http://127.0.0.1:1")
        }
    }

    #[test]
    fn the_file_overrides_the_variable_and_all_headers_are_sensitive() {
        let folder = tempfile::tempdir().unwrap();
        let file = "# a comment\n\nAuthorization: Bearer a:b \n x-scope-orgid:team\r\n";
        let headers = read(&settings(folder.path(), file, Some("authorization=other,api-key=k%20"))).unwrap();
        let shown: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        assert_eq!(shown.len(), 3, "{shown:?}");
        for header in [("authorization", "Bearer a:b"), ("x-scope-orgid", "team"), ("api-key", "k ")] {
            assert!(shown.contains(&header), "{shown:?}");
        }
        assert!(!format!("{headers:?}").contains("Bearer"), "{headers:?}");
    }

    #[test]
    fn an_error_names_the_line_and_not_its_content() {
        let folder = tempfile::tempdir().unwrap();
        let cases =
            [("secret", None), ("a: b\nsecret\u{7f}: x", None), ("Host: secret", None), ("a: secret\u{1}", None)];
        for (file, variable) in cases {
            let error = read(&settings(folder.path(), file, variable)).unwrap_err().to_string();
            assert!(error.contains("line ") && !error.contains("secret"), "{error}");
        }
        for variable in ["secret", "content-length=secret", "a b=secret"] {
            let error = read(&settings(folder.path(), "", Some(variable))).unwrap_err().to_string();
            assert!(error.contains(VARIABLE) && error.contains("member 1") && !error.contains("secret"), "{error}");
        }
        let absent = Settings { headers_file: Some(folder.path().join("none")), ..settings(folder.path(), "", None) };
        assert!(read(&absent).unwrap_err().to_string().contains("none"));
    }

    #[test]
    fn a_file_that_is_too_long_is_refused_and_not_cut() {
        let folder = tempfile::tempdir().unwrap();
        let file = format!("a: b\n#{}", "c".repeat(LIMIT as usize - 6));
        assert_eq!(read(&settings(folder.path(), &file, None)).unwrap().len(), 1);
        let error = read(&settings(folder.path(), &format!("{file}c"), None)).unwrap_err().to_string();
        assert!(error.contains("longer than 65536 bytes"), "{error}");
    }
}
