//! What must not be shown of the headers of a request.

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_STANDARD_NO_PAD, BASE64_URL_SAFE, BASE64_URL_SAFE_NO_PAD};
use hyper::HeaderMap;
use hyper::header::HeaderValue;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use text_and_sizes::text::{HIDDEN, untrusted};

use super::QUOTED;

/// What a URL escapes in a parameter's value.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The values of headers, in the forms in which a server may repeat them.
#[derive(Debug, Clone, Default)]
pub struct Secrets(Vec<String>);

impl Secrets {
    /// The shortest value that is removed from a text, in bytes. Shorter ones occur in most texts by chance.
    const SHORTEST: usize = 4;

    /// The values of those headers that are sensitive.
    pub fn of(headers: &HeaderMap) -> Self {
        let sensitive = headers.values().filter(|value| value.is_sensitive());
        let mut forms: Vec<_> = sensitive.flat_map(contained).flat_map(|secret| forms(&secret)).collect();
        forms.retain(|form| form.len() >= Self::SHORTEST);
        // A form that contains another one goes first.
        forms.sort_unstable_by(|one, other| other.len().cmp(&one.len()).then_with(|| one.cmp(other)));
        forms.dedup();
        Self(forms)
    }

    /// A text from outside without the values.
    pub fn redact(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, secret| text.replace(secret, HIDDEN))
    }

    /// The beginning of a text from a server, for a message. The values are removed before it is cut, because a part of one
    /// would not be found.
    pub fn quote(&self, text: &str) -> String {
        untrusted(&self.redact(text), QUOTED)
    }
}

/// The secrets in a header: its value, the part after the scheme (`Bearer …`), and with `Basic` the user with the password,
/// and the password.
fn contained(value: &HeaderValue) -> Vec<String> {
    let value = String::from_utf8_lossy(value.as_bytes()).trim().to_owned();
    let mut secrets = Vec::new();
    if let Some((_, credentials)) = value.split_once(' ') {
        let credentials = credentials.trim();
        secrets.push(credentials.to_owned());
        // Whatever the scheme: some receivers have one of their own for the same content.
        let engines = [&BASE64_STANDARD, &BASE64_STANDARD_NO_PAD, &BASE64_URL_SAFE, &BASE64_URL_SAFE_NO_PAD];
        let decoded = engines.iter().find_map(|engine| engine.decode(credentials).ok());
        if let Some(pair) = decoded.and_then(|bytes| String::from_utf8(bytes).ok()) {
            secrets.extend(pair.split_once(':').map(|(_, password)| password.to_owned()));
            secrets.push(pair);
        }
    }
    secrets.push(value);
    secrets
}

/// A secret as it is, and as JSON, Base64 and a URL contain it.
fn forms(secret: &str) -> Vec<String> {
    let json = serde_json::to_string(secret).unwrap_or_default();
    let decoded = percent_decode_str(secret).decode_utf8_lossy().into_owned();
    let url = |set| utf8_percent_encode(secret, set).to_string();
    vec![
        secret.to_owned(),
        json.trim_matches('"').to_owned(),
        BASE64_STANDARD.encode(secret),
        BASE64_STANDARD_NO_PAD.encode(secret),
        BASE64_URL_SAFE_NO_PAD.encode(secret),
        url(NON_ALPHANUMERIC),
        url(ESCAPED),
        decoded,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets(values: &[&str]) -> Secrets {
        let mut headers = HeaderMap::new();
        for value in values {
            let mut value = HeaderValue::try_from(*value).unwrap();
            value.set_sensitive(true);
            headers.append("authorization", value);
        }
        headers.insert("accept", HeaderValue::from_static("application/json"));
        Secrets::of(&headers)
    }

    #[test]
    fn the_values_are_removed_from_a_text_with_and_without_their_scheme() {
        let secrets = secrets(&["Bearer token", "token-2", "abc"]);
        for (text, expected) in [
            ("Bearer token is unknown", "[redacted] is unknown"),
            ("\"token\", 'token-2': Bearer", "\"[redacted]\", '[redacted]': Bearer"),
            ("abc application/json", "abc application/json"),
            ("", ""),
        ] {
            assert_eq!(secrets.redact(text), expected);
        }
    }

    #[test]
    fn a_password_is_removed_in_every_form_in_which_a_server_may_repeat_it() {
        // ada:p@ss/w\"rd
        let secrets = secrets(&["Basic YWRhOnBAc3Mvd1wicmQ="]);
        for text in [
            "YWRhOnBAc3Mvd1wicmQ=",
            "YWRhOnBAc3Mvd1wicmQ",
            "Basic YWRhOnBAc3Mvd1wicmQ=",
            "Basic%20YWRhOnBAc3Mvd1wicmQ%3D",
            "ada:p@ss/w\\\"rd",
            "p@ss/w\\\"rd",
            "p@ss/w\\\\\\\"rd",
            "p%40ss%2Fw%5C%22rd",
            "cEBzcy93XCJyZA==",
            "cEBzcy93XCJyZA",
        ] {
            let shown = secrets.quote(&format!("no user {text} here"));
            assert!(shown.contains("no user") && shown.contains(HIDDEN) && shown.contains("here"), "{text}: {shown}");
            for part in ["ss", "YWRh", "cEBz", "rd"] {
                assert!(!shown.replace(HIDDEN, "").contains(part), "{text}: {shown}");
            }
        }
    }

    #[test]
    fn a_secret_that_the_cut_would_divide_is_removed() {
        let secrets = secrets(&["Bearer s3cr3t-t0ken"]);
        let shown = secrets.quote(&format!("{}s3cr3t-t0ken", "x".repeat(QUOTED - 6)));
        assert!(!shown.contains("s3") && shown.chars().count() <= QUOTED + 1, "{shown}");
    }
}
