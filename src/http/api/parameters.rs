//! The parameters of a request. An unknown or invalid parameter is rejected, so that no client relies on an effect that
//! the parameter does not have.

use std::collections::BTreeMap;

use percent_encoding::percent_decode_str;

use super::Problem;

/// The longest query that is accepted, in bytes.
const MAX_BYTES: usize = 1024;

/// The parameters that have not been taken yet.
pub(super) struct Parameters(BTreeMap<String, String>);

impl Parameters {
    /// Splits the query. Each parameter may be given once.
    pub(super) fn read(query: Option<&str>) -> Result<Self, Problem> {
        let query = query.unwrap_or_default();
        if query.len() > MAX_BYTES {
            return Err(Problem::bad_request(format!("the query must have at most {MAX_BYTES} bytes")));
        }
        let mut found = BTreeMap::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let decode = |text: &str| percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned();
            if found.insert(decode(name), decode(value)).is_some() {
                return Err(Problem::bad_request("a parameter is given twice"));
            }
        }
        Ok(Self(found))
    }

    /// Takes a parameter.
    pub(super) fn text(&mut self, name: &str) -> Option<String> {
        self.0.remove(name)
    }

    /// Takes a parameter that is a number from `min` to `max`.
    pub(super) fn number(&mut self, name: &str, min: f64, max: f64) -> Result<Option<f64>, Problem> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let number: Option<f64> = text.parse().ok().filter(|number| (min..=max).contains(number));
        let wrong = || Problem::bad_request(format!("{name}: must be a number from {min} to {max}"));
        number.ok_or_else(wrong).map(Some)
    }

    /// Takes the parameter `limit`, a number from 1 to `most`; `usual` if it is not given.
    pub(super) fn limit(&mut self, most: usize, usual: usize) -> Result<usize, Problem> {
        Ok(self.number("limit", 1.0, most as f64)?.map_or(usual, |limit| limit as usize))
    }

    /// Takes a parameter that is a Unix time in seconds.
    pub(super) fn time(&mut self, name: &str) -> Result<Option<f64>, Problem> {
        self.number(name, 0.0, 1e11)
    }

    /// Rejects the request if any parameter has not been taken.
    pub(super) fn end(self, known: &[&str]) -> Result<(), Problem> {
        if self.0.is_empty() {
            Ok(())
        } else if known.is_empty() {
            Err(Problem::bad_request("this path has no parameters"))
        } else {
            Err(Problem::bad_request(format!("unknown parameter; known parameters: {}", known.join(", "))))
        }
    }
}
