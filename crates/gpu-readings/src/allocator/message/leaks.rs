//! The messages of version 2: the question which call sites grow, and the lines of its answer.

use std::borrow::Cow;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::{Invalid, LONGEST_SITE, is_name, known, number};
use crate::snapshot::MOST_SITES;

/// How long a process may look, in seconds.
const SECONDS: RangeInclusive<u64> = 1..=600;
/// How often a process may look. With fewer looks, nothing that grows differs from what is used in turns.
const LOOKS: RangeInclusive<u64> = 3..=20;
/// The maximum number of bytes of a reason.
const LONGEST_REASON: usize = 32;

/// Asks which call sites of a process grow.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Question {
    /// The version of the protocol that the asker speaks.
    #[serde(deserialize_with = "number")]
    pub version: u64,
    /// The process, in the exporter's pid namespace.
    pub pid: u32,
    /// The time from the first look to the last one.
    #[serde(deserialize_with = "number")]
    pub seconds: u64,
    /// The number of looks.
    #[serde(deserialize_with = "number")]
    pub looks: u64,
}

/// A part of the answer: the call sites of one framework on one device that grew between any two looks. All amounts are bytes.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(tag = "type", rename = "leak_sites")]
pub struct LeakSites<'a> {
    /// The number of the question.
    #[serde(deserialize_with = "number")]
    pub id: u64,
    /// The framework's name.
    #[serde(borrow)]
    pub framework: Cow<'a, str>,
    /// The UUID of the device.
    #[serde(borrow)]
    pub device: Cow<'a, str>,
    /// The time from the first look to the last one, as it was.
    #[serde(deserialize_with = "number")]
    pub seconds: u64,
    /// The number of looks.
    #[serde(deserialize_with = "number")]
    pub looks: u64,
    /// The optimizer steps in this time; `None` if no optimizer's count is readable.
    #[serde(default, deserialize_with = "known", skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    /// The call sites, those that grew most.
    #[serde(borrow)]
    pub sites: Vec<LeakSite<'a>>,
    /// The number of other call sites that grew; `None` if it is unknown.
    #[serde(default, deserialize_with = "known", skip_serializing_if = "Option::is_none")]
    pub more_sites: Option<u64>,
    /// Live memory whose call site was not recorded; `None` if it is unknown.
    #[serde(default, deserialize_with = "known", skip_serializing_if = "Option::is_none")]
    pub unrecorded_bytes: Option<u64>,
}

/// A call site that grew.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub struct LeakSite<'a> {
    /// The file, the line and the function.
    #[serde(borrow)]
    pub site: Cow<'a, str>,
    /// How many bytes it grew by.
    #[serde(deserialize_with = "number")]
    pub bytes: u64,
    /// Its live memory at the last look, in bytes.
    #[serde(deserialize_with = "number")]
    pub live_bytes: u64,
}

/// The end of the answer.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(tag = "type", rename = "answered")]
pub struct Answered<'a> {
    /// The number of the question.
    #[serde(deserialize_with = "number")]
    pub id: u64,
    /// Why the process could not look, in one word; `None` if it could.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Cow<'a, str>>,
}

impl Question {
    pub(super) fn check(&self) -> Result<(), Invalid> {
        let is_allowed = SECONDS.contains(&self.seconds) && LOOKS.contains(&self.looks);
        is_allowed.then_some(()).ok_or(Invalid::Question)
    }
}

impl LeakSites<'_> {
    /// Checks the call sites.
    pub(super) fn check(&self) -> Result<(), Invalid> {
        let are_names = self.sites.iter().all(|site| is_name(&site.site, LONGEST_SITE));
        (self.sites.len() <= MOST_SITES && are_names).then_some(()).ok_or(Invalid::Sites)
    }
}

impl Answered<'_> {
    pub(super) fn check(&self) -> Result<(), Invalid> {
        let is_letter = |c: u8| c.is_ascii_lowercase() || c == b'_';
        let is_reason = |reason: &str| (1..=LONGEST_REASON).contains(&reason.len()) && reason.bytes().all(is_letter);
        self.reason.as_deref().is_none_or(is_reason).then_some(()).ok_or(Invalid::Question)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Message, parse};
    use super::*;

    fn refused(line: &str) -> String {
        parse(line.as_bytes()).expect_err(line).to_string()
    }

    #[test]
    fn a_question_is_bounded() {
        let question = |pid: &str, seconds: u64, looks: u64| {
            format!(r#"{{"type":"leaks","version":2,"pid":{pid},"seconds":{seconds},"looks":{looks}}}"#)
        };
        let asked = Question { version: 2, pid: 7, seconds: 600, looks: 20 };
        assert_eq!(parse(question("7", 600, 20).as_bytes()).unwrap(), Message::Question(asked));
        assert!(parse(question("7", 1, 3).as_bytes()).is_ok());
        for (seconds, looks) in [(0, 3), (601, 3), (1, 2), (1, 21)] {
            assert_eq!(refused(&question("7", seconds, looks)), Invalid::Question.to_string(), "{seconds} {looks}");
        }
        for pid in ["-1", "4294967296", "1.0", "null", "\"7\""] {
            assert_eq!(refused(&question(pid, 20, 5)), Invalid::Form.to_string(), "{pid}");
        }
    }

    fn answer(sites: &str) -> String {
        let rest = r#""framework":"pytorch","device":"GPU-1","seconds":20,"looks":5"#;
        format!(r#"{{"type":"leak_sites","id":9,{rest},"sites":[{sites}]}}"#)
    }

    fn site(name: &str) -> String {
        format!(r#"{{"site":"{name}","bytes":1,"live_bytes":2}}"#)
    }

    #[test]
    fn an_answer_is_checked() {
        assert!(parse(answer("").as_bytes()).is_ok());
        assert!(parse(answer(&vec![site(&"ü".repeat(128)); 10].join(",")).as_bytes()).is_ok());
        for sites in [site(""), site("a\\nb"), site("a\\u009f"), site(&"ü".repeat(129)), vec![site("a"); 11].join(",")]
        {
            assert_eq!(refused(&answer(&sites)), Invalid::Sites.to_string(), "{sites}");
        }
        let wrong = [
            answer(r#"{"site":"a","bytes":-1,"live_bytes":0}"#),
            answer(r#"{"site":"a","bytes":1}"#),
            answer("").replace(r#""id":9"#, r#""id":null"#),
            answer("").replace(r#""looks":5"#, r#""looks":9007199254740993"#),
        ];
        for line in wrong {
            assert_eq!(refused(&line), Invalid::Form.to_string(), "{line}");
        }
        assert_eq!(refused(&answer("").replace("GPU-1", "0")), Invalid::Device.to_string());
        assert_eq!(refused(&answer("").replace("pytorch", "PyTorch")), Invalid::Framework.to_string());
        for reason in ["", "Busy", "a b", "\\u001b", &"a".repeat(33)] {
            let line = format!(r#"{{"type":"answered","id":1,"reason":"{reason}"}}"#);
            assert_eq!(refused(&line), Invalid::Question.to_string(), "{reason}");
        }
        assert!(parse(br#"{"type":"answered","id":1,"reason":"busy"}"#).is_ok());
    }

    #[test]
    fn an_answer_that_is_written_again_has_nothing_else() {
        let hostile = site(r#"a.py:1 \\ \" \u2028 \ud83d\ude00 ü \/"#);
        let line = answer(&hostile).replace(r#""sites""#, r#""steps":null,"pid":5,"more_sites":3,"sites""#);
        let Message::LeakSites(found) = parse(line.as_bytes()).unwrap() else { panic!("{line}") };
        let written = serde_json::to_string(&found).unwrap();
        let expected = r#"{"type":"leak_sites","id":9,"framework":"pytorch","device":"GPU-1","seconds":20,"looks":5,"sites":[{"site":"a.py:1 \\ \" U 😀 ü /","bytes":1,"live_bytes":2}],"more_sites":3}"#;
        assert_eq!(written, expected.replace('U', "\u{2028}").replace("GP\u{2028}", "GPU"));
        let Message::Answered(answered) = parse(br#"{"type":"answered","id":1,"reason":null}"#).unwrap() else {
            panic!()
        };
        assert_eq!(serde_json::to_string(&answered).unwrap(), r#"{"type":"answered","id":1}"#);
    }
}
