//! The JSON of Prometheus' HTTP API, read into compact series.
//!
//! Invariants: a point whose value is not a number from 0 to 2^53 is left out and counted, so that every value is an exact integer;
//! what is kept of all answers is counted while it is read, and reading ends at the limit and at the deadline.

use std::borrow::Cow;
use std::fmt;
use std::mem::size_of;
use std::time::Instant;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// The largest integer up to which a double has every integer.
const EXACT: f64 = 9_007_199_254_740_992.0;
/// What the allocator needs for a text besides its characters, in bytes, at most.
const TEXT: usize = 32;
/// How many samples and series are read between two looks at the clock.
const LOOK: u64 = 4096;

/// The labels of a series; an absent label is the same as an empty one.
pub(in super::super) type Labels = Vec<(String, String)>;

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
        let found = self.labels.iter().find(|(own, _)| own == name);
        found.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
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
    /// The time was over.
    Late,
}

/// What may still be read of all answers, and what was left out of them.
#[derive(Debug)]
pub(super) struct Room {
    /// The memory that is left for series, in bytes.
    left: usize,
    deadline: Instant,
    steps: u64,
    /// The number of points that were left out.
    pub(super) left_out: u64,
    full: Option<Full>,
}

#[derive(Debug, Clone, Copy)]
enum Full {
    Memory,
    Time,
}

impl Room {
    pub(super) fn new(left: usize, deadline: Instant) -> Self {
        Self { left, deadline, steps: 0, left_out: 0, full: None }
    }

    fn take<E: serde::de::Error>(&mut self, bytes: usize) -> Result<(), E> {
        self.steps += 1;
        if self.steps.is_multiple_of(LOOK) && Instant::now() >= self.deadline {
            self.full = Some(Full::Time);
            return Err(E::custom("the time is over"));
        }
        self.left = self.left.checked_sub(bytes).ok_or_else(|| {
            self.full = Some(Full::Memory);
            E::custom("too large")
        })?;
        Ok(())
    }
}

/// A successful answer.
#[derive(Debug, Default)]
pub(super) struct Success {
    pub(super) series: Vec<Series>,
    pub(super) warnings: Vec<String>,
    /// Whether the server says that a part of the data is missing (VictoriaMetrics).
    pub(super) is_partial: bool,
}

/// Reads an answer.
pub(super) fn parse(body: &[u8], room: &mut Room) -> Result<Success, Error> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let read = Document(room).deserialize(&mut json).and_then(|found| json.end().map(|()| found));
    let (status, data, said, mut success) = read.map_err(|error| match room.full.take() {
        Some(Full::Memory) => Error::TooLarge,
        Some(Full::Time) => Error::Late,
        None => Error::Foreign(error.to_string()),
    })?;
    match (&*status, data) {
        ("success", Some(series)) => {
            success.series = series;
            Ok(success)
        }
        ("error", _) => Err(Error::Said(said)),
        _ => Err(Error::Foreign("the answer has no result".to_owned())),
    }
}

/// The whole document: the status, the series, what it says about an error, and the rest of a success.
struct Document<'r>(&'r mut Room);

type Found = (String, Option<Vec<Series>>, String, Success);

impl<'de> DeserializeSeed<'de> for Document<'_> {
    type Value = Found;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Found, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Document<'_> {
    type Value = Found;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an answer of Prometheus' API")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Found, A::Error> {
        let (mut status, mut data, mut success) = (None, None, Success::default());
        let (mut kind, mut error) = (String::new(), String::new());
        while let Some(key) = map.next_key::<Cow<'_, str>>()? {
            match &*key {
                "status" => status = Some(map.next_value::<String>()?),
                "data" => data = map.next_value_seed(Data(self.0))?,
                "errorType" => kind = map.next_value()?,
                "error" => error = map.next_value()?,
                "warnings" => success.warnings = map.next_value::<Option<Vec<String>>>()?.unwrap_or_default(),
                "isPartial" => success.is_partial = map.next_value::<Option<bool>>()?.unwrap_or(false),
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        let status = status.ok_or_else(|| A::Error::missing_field("status"))?;
        Ok((status, data, format!("{kind}: {error}"), success))
    }
}

/// Declares a seed that reads one JSON value of a kind, and counts it against the room.
macro_rules! seed {
    ($name:ident -> $value:ty, $expecting:literal, |$seed:ident, $access:ident| $method:ident $visit:ident $trait:ident $body:block $($unit:item)?) => {
        struct $name<'r>(&'r mut Room);

        impl<'de> DeserializeSeed<'de> for $name<'_> {
            type Value = $value;

            fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<$value, D::Error> {
                deserializer.$method(self)
            }
        }

        impl<'de> Visitor<'de> for $name<'_> {
            type Value = $value;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str($expecting)
            }

            fn $visit<A: $trait<'de>>(self, mut $access: A) -> Result<$value, A::Error> {
                let $seed = self;
                $body
            }

            $($unit)?
        }
    };
}

seed!(Data -> Option<Vec<Series>>, "the data of an answer", |seed, map| deserialize_any visit_map MapAccess {
    let mut result = None;
    while let Some(key) = map.next_key::<Cow<'_, str>>()? {
        if key == "result" {
            result = Some(map.next_value_seed(All(&mut *seed.0))?);
        } else {
            map.next_value::<IgnoredAny>()?;
        }
    }
    result.map(Some).ok_or_else(|| A::Error::missing_field("result"))
} fn visit_unit<E>(self) -> Result<Self::Value, E> { Ok(None) });

seed!(All -> Vec<Series>, "series", |seed, sequence| deserialize_seq visit_seq SeqAccess {
    let mut all = Vec::new();
    while let Some(series) = sequence.next_element_seed(One(&mut *seed.0))? {
        all.push(series);
    }
    Ok(all)
});

seed!(One -> Series, "a series", |seed, map| deserialize_map visit_map MapAccess {
    // A list that grows has room for twice as many.
    seed.0.take(2 * size_of::<Series>())?;
    let mut series = Series { labels: Labels::new(), points: Vec::new() };
    let mut has_labels = false;
    while let Some(key) = map.next_key::<Cow<'_, str>>()? {
        match &*key {
            "metric" => {
                series.labels = map.next_value_seed(Names(&mut *seed.0))?;
                has_labels = true;
            }
            "value" => {
                let sample = map.next_value::<Option<Sample<'_>>>()?;
                series.points.extend(sample.and_then(|sample| seed.0.point(&sample)));
                seed.0.take(TEXT)?;
            }
            "values" => series.points = map.next_value_seed(Points(&mut *seed.0))?,
            _ => {
                map.next_value::<IgnoredAny>()?;
            }
        }
    }
    if has_labels { Ok(series) } else { Err(A::Error::missing_field("metric")) }
});

seed!(Names -> Labels, "labels", |seed, map| deserialize_map visit_map MapAccess {
    let mut labels = Labels::new();
    while let Some((name, value)) = map.next_entry::<String, String>()? {
        seed.0.take(2 * size_of::<(String, String)>() + 2 * TEXT + name.len() + value.len())?;
        labels.push((name, value));
    }
    labels.shrink_to_fit();
    Ok(labels)
});

seed!(Points -> Vec<Point>, "samples", |seed, sequence| deserialize_seq visit_seq SeqAccess {
    let mut points = Vec::new();
    while let Some(sample) = sequence.next_element::<Sample<'_>>()? {
        seed.0.take(size_of::<Point>())?;
        points.extend(seed.0.point(&sample));
    }
    points.shrink_to_fit();
    Ok(points)
});

#[derive(Deserialize)]
struct Sample<'a>(f64, #[serde(borrow)] Cow<'a, str>);

impl Room {
    fn point(&mut self, Sample(time, value): &Sample<'_>) -> Option<Point> {
        let whole = |number: f64| (0.0..=EXACT).contains(&number).then(|| number.round() as u64);
        let point = || Some(Point { time: whole(*time)?, value: whole(value.parse().ok()?)? });
        let point = point();
        self.left_out += u64::from(point.is_none());
        point
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn of(result: &str) -> Vec<Series> {
        let text = format!("{{\"status\":\"success\",\"data\":{{\"resultType\":\"vector\",\"result\":{result}}}}}");
        parse(text.as_bytes(), &mut room()).unwrap().series
    }

    fn room() -> Room {
        Room::new(1 << 20, Instant::now() + Duration::from_secs(600))
    }

    #[test]
    fn what_is_kept_is_bounded_while_it_is_read() {
        let one = r#"{"metric":{"a":"b"},"value":[1,"1"]}"#;
        let many = |number: usize| {
            format!("{{\"status\":\"success\",\"data\":{{\"result\":[{}]}}}}", vec![one; number].join(","))
        };
        let mut room = Room::new(10_000, Instant::now() + Duration::from_secs(600));
        assert_eq!(parse(many(10).as_bytes(), &mut room).unwrap().series.len(), 10);
        assert!(matches!(parse(many(100).as_bytes(), &mut room), Err(Error::TooLarge)), "all answers together");
        let mut late = Room::new(usize::MAX, Instant::now());
        assert!(matches!(parse(many(5000).as_bytes(), &mut late), Err(Error::Late)));
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
