//! The JSON of Prometheus' HTTP API.
//!
//! Invariant: a point whose value is not a number from 0 to 2^53 is left out, so that every value is an exact integer.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;

/// The largest integer up to which a double has every integer.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// The labels of a series; an absent label is the same as an empty one.
pub(in super::super) type Labels = BTreeMap<String, String>;

/// A value at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Point {
    /// Seconds since the Unix epoch.
    pub(in super::super) time: u64,
    pub(in super::super) value: u64,
}

/// A series with its points; an instant query has one point for each.
#[derive(Debug, PartialEq, Eq)]
pub(in super::super) struct Series {
    pub(in super::super) labels: Labels,
    pub(in super::super) points: Vec<Point>,
}

impl Series {
    /// A label; `None` if it is absent or empty.
    pub(in super::super) fn label(&self, name: &str) -> Option<&str> {
        self.labels.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// The value of an instant query; `None` if it was left out.
    pub(in super::super) fn value(&self) -> Option<u64> {
        self.points.first().map(|point| point.value)
    }
}

/// Why the answer has no result.
#[derive(Debug)]
pub(super) enum Error {
    /// The server says why.
    Said(String),
    /// It is not an answer of this API.
    Foreign(String),
}

#[derive(Deserialize)]
struct Document<'a> {
    #[serde(borrow)]
    status: Cow<'a, str>,
    #[serde(borrow)]
    data: Option<Data<'a>>,
    #[serde(default, rename = "errorType")]
    error_type: String,
    #[serde(default)]
    error: String,
    warnings: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct Data<'a> {
    #[serde(borrow)]
    result: Vec<Found<'a>>,
}

#[derive(Deserialize)]
struct Found<'a> {
    metric: Labels,
    #[serde(borrow)]
    value: Option<Sample<'a>>,
    #[serde(borrow, default)]
    values: Vec<Sample<'a>>,
}

#[derive(Deserialize)]
struct Sample<'a>(f64, #[serde(borrow)] Cow<'a, str>);

/// The series of a successful answer, and the warnings.
pub(super) fn parse(body: &[u8]) -> Result<(Vec<Series>, Vec<String>), Error> {
    let document: Document<'_> = serde_json::from_slice(body).map_err(|error| Error::Foreign(error.to_string()))?;
    let warnings = document.warnings.unwrap_or_default();
    match (&*document.status, document.data) {
        ("success", Some(data)) => Ok((data.result.into_iter().map(series).collect(), warnings)),
        ("error", _) => Err(Error::Said(format!("{}: {}", document.error_type, document.error))),
        _ => Err(Error::Foreign("the answer has no result".to_owned())),
    }
}

fn series(found: Found<'_>) -> Series {
    let points = found.value.iter().chain(&found.values).filter_map(point).collect();
    Series { labels: found.metric, points }
}

fn point(Sample(time, value): &Sample<'_>) -> Option<Point> {
    let whole = |number: f64| (0.0..=EXACT).contains(&number).then(|| number.round() as u64);
    Some(Point { time: whole(*time)?, value: whole(value.parse().ok()?)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(result: &str) -> Vec<Series> {
        let text = format!("{{\"status\":\"success\",\"data\":{{\"resultType\":\"vector\",\"result\":{result}}}}}");
        parse(text.as_bytes()).unwrap().0
    }

    #[test]
    fn values_are_exact_integers() {
        let found = of(
            r#"[{"metric":{"uuid":"GPU-1","pod":"","a\u0007":"\"\u001b"},"value":[1700000000.4,"150109880320"]},
                {"metric":{},"values":[[1,"1.5e+10"],[2,"NaN"],[3,"+Inf"],[4,"-1"],[5,"x"],[6,"1e17"],[7,"9007199254740992"]]}]"#,
        );
        assert_eq!((found[0].value(), found[0].points[0].time), (Some(150_109_880_320), 1_700_000_000));
        assert_eq!((found[0].label("uuid"), found[0].label("pod"), found[0].label("x")), (Some("GPU-1"), None, None));
        let expected = [(1, 15_000_000_000), (7, 9_007_199_254_740_992)];
        assert_eq!(found[1].points, expected.map(|(time, value)| Point { time, value }));
        assert_eq!(of(r#"[{"metric":{},"value":[1,"NaN"]}]"#)[0].value(), None);
    }

    #[test]
    fn errors_and_other_answers_are_told_apart() {
        let said = br#"{"status":"error","errorType":"timeout","error":"query timed out"}"#;
        assert!(matches!(parse(said), Err(Error::Said(why)) if why == "timeout: query timed out"));
        for other in
            ["", "<html>", "[]", "{}", r#"{"status":"success"}"#, r#"{"status":"success","data":{"result":5}}"#]
        {
            assert!(matches!(parse(other.as_bytes()), Err(Error::Foreign(_))), "{other}");
        }
        let (series, warnings) =
            parse(br#"{"status":"success","warnings":["partial"],"data":{"result":[]},"infos":[]}"#).unwrap();
        assert_eq!((series.len(), warnings), (0, vec!["partial".to_owned()]));
    }
}
