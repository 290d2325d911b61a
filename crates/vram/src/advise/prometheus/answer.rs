//! The JSON of Prometheus' HTTP API, read into compact series.
//!
//! Invariants: a point whose value is not a number from 0 to 2^53 is left out and counted, so that every value is an exact integer;
//! an answer is read only if there is room for the most that its text can become, and what is kept of all answers is counted.

use std::borrow::Cow;
use std::collections::HashMap;
use std::mem::size_of;

use serde::Deserialize;

/// The largest integer up to which a double has every integer.
const EXACT: f64 = 9_007_199_254_740_992.0;
/// What the allocator needs for a text or a map besides its content, in bytes, at most.
const ALLOCATION: usize = 32;
/// The memory of a label besides its characters, in bytes: a map has room for twice as many, and so has a list that grows.
const LABEL: usize = 2 * size_of::<(String, String)>();
/// The memory of a series besides its labels and points, in bytes. The smallest map has room for four labels.
const SERIES: usize = 2 * size_of::<Element>() + 4 * size_of::<(String, String)>() + 2 * ALLOCATION;

/// The labels of a series; an absent label is the same as an empty one.
pub(in super::super) type Labels = HashMap<String, String>;

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
    /// The series need more memory than is left.
    TooLarge,
}

/// What may still be kept of all answers, and what was left out of them.
#[derive(Debug)]
pub(super) struct Room {
    /// The memory that is left for series, in bytes.
    pub(super) left: usize,
    /// The number of points that were left out.
    pub(super) left_out: u64,
}

/// A successful answer.
#[derive(Debug)]
pub(super) struct Success {
    pub(super) series: Vec<Series>,
    pub(super) warnings: Vec<String>,
    /// Whether the server says that a part of the data is missing (VictoriaMetrics).
    pub(super) is_partial: bool,
}

#[derive(Deserialize)]
struct Document {
    status: String,
    data: Option<Data>,
    #[serde(default, rename = "errorType")]
    kind: String,
    #[serde(default)]
    error: String,
    warnings: Option<Vec<String>>,
    #[serde(rename = "isPartial")]
    is_partial: Option<bool>,
}

#[derive(Deserialize)]
struct Data {
    result: Vec<Element>,
}

#[derive(Deserialize)]
struct Element {
    metric: Labels,
    value: Option<Sample>,
    #[serde(default)]
    values: Vec<Sample>,
}

/// A point, if it is one that is kept.
#[derive(Deserialize)]
#[serde(from = "Written<'de>")]
struct Sample(Option<Point>);

#[derive(Deserialize)]
struct Written<'a>(f64, #[serde(borrow)] Cow<'a, str>);

impl From<Written<'_>> for Sample {
    fn from(Written(time, value): Written<'_>) -> Self {
        let whole = |number: f64| (0.0..=EXACT).contains(&number).then(|| number.round() as u64);
        let point = || Some(Point { time: whole(time)?, value: whole(value.parse().ok()?)? });
        Self(point())
    }
}

/// Reads an answer.
pub(super) fn parse(body: &[u8], room: &mut Room) -> Result<Success, Error> {
    if most(body) > room.left {
        return Err(Error::TooLarge);
    }
    let found: Document = serde_json::from_slice(body).map_err(|error| Error::Foreign(error.to_string()))?;
    match (&*found.status, found.data) {
        ("success", Some(data)) => {
            let series = data.result.into_iter().map(|element| room.keep(element)).collect();
            let (warnings, is_partial) = (found.warnings.unwrap_or_default(), found.is_partial.unwrap_or(false));
            Ok(Success { series, warnings, is_partial })
        }
        ("error", _) => Err(Error::Said(format!("{}: {}", found.kind, found.error))),
        _ => Err(Error::Foreign("the answer has no result".to_owned())),
    }
}

/// The most memory that reading this text needs, in bytes, whatever it contains: each series has a brace, each label a colon, each
/// point a bracket, and each text two quotation marks.
fn most(text: &[u8]) -> usize {
    let cost = |byte: &u8| match byte {
        b'{' => SERIES,
        b':' => LABEL,
        b'[' => 2 * size_of::<Sample>(),
        b'"' => ALLOCATION / 2,
        _ => 1,
    };
    text.iter().map(cost).sum()
}

impl Room {
    fn keep(&mut self, Element { metric: labels, value, values }: Element) -> Series {
        let samples = values.len() + usize::from(value.is_some());
        let points: Vec<_> = value.into_iter().chain(values).filter_map(|sample| sample.0).collect();
        self.left_out += (samples - points.len()) as u64;
        let texts: usize = labels.iter().map(|(name, value)| LABEL + 2 * ALLOCATION + name.len() + value.len()).sum();
        self.left = self.left.saturating_sub(SERIES + texts + points.len() * size_of::<Point>());
        Series { labels, points }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(result: &str) -> Vec<Series> {
        let text = format!("{{\"status\":\"success\",\"data\":{{\"resultType\":\"vector\",\"result\":{result}}}}}");
        parse(text.as_bytes(), &mut room()).unwrap().series
    }

    fn room() -> Room {
        Room { left: 1 << 20, left_out: 0 }
    }

    #[test]
    fn what_is_kept_is_bounded_before_it_is_read() {
        let one = r#"{"metric":{"a":"b"},"value":[1,"1"]}"#;
        let many = |number: usize| {
            format!("{{\"status\":\"success\",\"data\":{{\"result\":[{}]}}}}", vec![one; number].join(","))
        };
        let mut room = Room { left: 40_000, left_out: 0 };
        assert_eq!(parse(many(10).as_bytes(), &mut room).unwrap().series.len(), 10);
        assert!(matches!(parse(many(100).as_bytes(), &mut room), Err(Error::TooLarge)), "one answer");
        while parse(many(10).as_bytes(), &mut room).is_ok() {
            assert!(room.left > 0);
        }
        assert!(matches!(parse(many(10).as_bytes(), &mut room), Err(Error::TooLarge)), "all answers together");
    }

    #[test]
    fn values_that_are_no_amounts_are_counted_and_a_partial_answer_is_known() {
        let mut room = room();
        let text = r#"{"status":"success","isPartial":true,"data":{"result":[{"metric":{},"values":[[1,"NaN"],[2,"+Inf"],[3,"4"]]}]}}"#;
        let found = parse(text.as_bytes(), &mut room).unwrap();
        assert!(found.is_partial);
        assert_eq!((room.left_out, found.series[0].points.len()), (2, 1));
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
        assert!(matches!(parse(said, &mut room()), Err(Error::Said(why)) if why == "timeout: query timed out"));
        for other in
            ["", "<html>", "[]", "{}", r#"{"status":"success"}"#, r#"{"status":"success","data":{"result":5}}"#]
        {
            assert!(matches!(parse(other.as_bytes(), &mut room()), Err(Error::Foreign(_))), "{other}");
        }
        let found =
            parse(br#"{"status":"success","warnings":["partial"],"data":{"result":[]},"infos":[]}"#, &mut room())
                .unwrap();
        assert_eq!((found.series.len(), found.warnings, found.is_partial), (0, vec!["partial".to_owned()], false));
    }
}
