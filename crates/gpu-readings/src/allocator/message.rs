//! Reads one line of the protocol. A pure function of bytes that a hostile process may have chosen.
//!
//! Invariant: a message that is returned contains only numbers up to 2^53 and short strings without control characters;
//! nothing is rounded, truncated or guessed.

mod leaks;
mod sites;

use std::borrow::Cow;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

pub use self::leaks::{Answered, LeakSite, LeakSites, Question};
pub use self::sites::{Look, Named, Roles};
use crate::snapshot::{MOST_FRAMES, MOST_MODULES, MOST_SITES};

/// The versions of the protocol. The second adds the question which call sites grow.
pub(crate) const VERSION: u64 = 1;
pub(crate) const VERSION_WITH_QUESTIONS: u64 = 2;
/// The maximum number of bytes in a line, without the line break.
pub(crate) const LONGEST_LINE: usize = 4096;
/// The largest number: JSON numbers above it are not exact in every language.
const LARGEST: u64 = 1 << 53;
/// The maximum number of bytes in the UUID of a device, in a framework's name and in a path.
const LONGEST_DEVICE: usize = 96;
const LONGEST_FRAMEWORK: usize = 32;
const LONGEST_PATH: usize = 1024;
/// The maximum number of characters in the name of a region.
const LONGEST_NAME: usize = 64;
/// The maximum number of characters in a call site, in a frame and in the path of a module.
const LONGEST_SITE: usize = 128;

/// A message from a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message<'a> {
    /// The first message.
    Hello {
        /// The version of the protocol that the client speaks.
        version: u64,
    },
    /// Values of one device and one framework.
    Report(Report<'a>),
    /// Nothing has changed.
    Alive,
    /// An allocation failed.
    OutOfMemory(OutOfMemory<'a>),
    /// The result of a measured region of the program.
    Measurement(Measurement<'a>),
    /// What the memory is.
    Sites(Look<'a>),
    /// Which call sites grew before what the memory is now.
    Growth(Look<'a>),
    /// Which modules the memory belongs to.
    Modules(Look<'a>),
    /// The first message of a connection that asks which call sites of a process grow.
    Question(Question),
    /// A part of the answer to such a question.
    LeakSites(LeakSites<'a>),
    /// The end of the answer.
    Answered(Answered<'a>),
    /// A message of a type that this version does not support.
    Unknown,
}

/// A value in a report: `None` if it has not changed, `Some(None)` if it is no longer known.
pub type Change = Option<Option<u64>>;

/// The values of a report. All are bytes or counters.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Report<'a> {
    /// The framework's name.
    #[serde(borrow)]
    pub framework: Cow<'a, str>,
    /// The UUID of the device.
    #[serde(borrow)]
    pub device: Cow<'a, str>,
    /// Bytes in live tensors or buffers.
    #[serde(default, deserialize_with = "change")]
    pub allocated_bytes: Change,
    /// Bytes obtained from the driver and still held.
    #[serde(default, deserialize_with = "change")]
    pub reserved_bytes: Change,
    /// The highest allocated memory since the previous report.
    #[serde(default, deserialize_with = "change")]
    pub high_bytes: Change,
    /// The highest allocated memory since the process started.
    #[serde(default, deserialize_with = "change")]
    pub peak_bytes: Change,
    /// The highest reserved memory since the process started.
    #[serde(default, deserialize_with = "change")]
    pub peak_reserved_bytes: Change,
    /// The most memory that the allocator may hold.
    #[serde(default, deserialize_with = "change")]
    pub limit_bytes: Change,
    /// The largest block that can be allocated without requesting more memory from the driver.
    #[serde(default, deserialize_with = "change")]
    pub largest_free_block_bytes: Change,
    /// Free parts of segments that are partly in use.
    #[serde(default, deserialize_with = "change")]
    pub inactive_split_bytes: Change,
    /// Allocations for which cached memory had to be returned to the driver first.
    #[serde(default, deserialize_with = "change")]
    pub retries: Change,
    /// Allocations that failed.
    #[serde(default, deserialize_with = "change")]
    pub out_of_memory: Change,
}

/// A failed allocation. All numbers are bytes.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct OutOfMemory<'a> {
    /// The framework's name.
    #[serde(borrow)]
    pub framework: Cow<'a, str>,
    /// The UUID of the device.
    #[serde(borrow)]
    pub device: Cow<'a, str>,
    /// What was requested.
    #[serde(deserialize_with = "number")]
    pub requested_bytes: u64,
    /// What was free on the device.
    #[serde(default, deserialize_with = "known")]
    pub free_bytes: Option<u64>,
    /// All memory of the device.
    #[serde(default, deserialize_with = "known")]
    pub total_bytes: Option<u64>,
    /// Bytes in live tensors or buffers.
    #[serde(default, deserialize_with = "known")]
    pub allocated_bytes: Option<u64>,
    /// Bytes obtained from the driver and still held.
    #[serde(default, deserialize_with = "known")]
    pub reserved_bytes: Option<u64>,
    /// The largest block that could be allocated without requesting more memory from the driver.
    #[serde(default, deserialize_with = "known")]
    pub largest_free_block_bytes: Option<u64>,
    /// A file that the framework wrote about the failure.
    #[serde(borrow, default)]
    pub snapshot_path: Option<Cow<'a, str>>,
    /// The call site that asked.
    #[serde(borrow, default)]
    pub site: Option<Cow<'a, str>>,
    /// The stack that asked, innermost first, with the framework's own code.
    #[serde(borrow, default)]
    pub frames: Vec<Cow<'a, str>>,
}

/// The result of a measured region.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Measurement<'a> {
    /// The framework's name.
    #[serde(borrow)]
    pub framework: Cow<'a, str>,
    /// The UUID of the device.
    #[serde(borrow)]
    pub device: Cow<'a, str>,
    /// The region's name.
    #[serde(borrow)]
    pub name: Cow<'a, str>,
    /// The highest allocated memory in the region, in bytes.
    #[serde(deserialize_with = "number")]
    pub peak_bytes: u64,
    /// The highest reserved memory in the region, in bytes.
    #[serde(default, deserialize_with = "known")]
    pub peak_reserved_bytes: Option<u64>,
}

/// Why a line is not a message of the protocol.
#[derive(Debug, thiserror::Error)]
pub enum Invalid {
    /// It is not a JSON object of a known form. The error's text never contains any part of the line.
    #[error("it is not a JSON object with the keys of its type, or a number is not a whole number from 0 to 2^53")]
    Form,
    /// The framework's name.
    #[error("the framework is not a name of 1 to {LONGEST_FRAMEWORK} characters from a-z, 0-9 and _")]
    Framework,
    /// The device.
    #[error("the device is not a UUID that begins with GPU- or MIG-")]
    Device,
    /// The name of a region.
    #[error("the name does not have 1 to {LONGEST_NAME} characters, or has control characters")]
    Name,
    /// The call sites.
    #[error(
        "there are more than {MOST_SITES} call sites, or one does not have 1 to {LONGEST_SITE} characters, or has control characters"
    )]
    Sites,
    /// The growth of call sites.
    #[error("the seconds are missing or 0, or a call site grew by 0 bytes")]
    Growth,
    /// The modules.
    #[error(
        "there are more than {MOST_MODULES} modules, or one does not have 1 to {LONGEST_SITE} characters, or has control characters"
    )]
    Modules,
    /// The frames.
    #[error(
        "there are more than {MOST_FRAMES} frames, or one does not have 1 to {LONGEST_SITE} characters, or has control characters"
    )]
    Frames,
    /// A question or the end of its answer.
    #[error("a question is not about 1 to 600 seconds and 3 to 20 looks, or a reason is not a short word")]
    Question,
    /// The path of a snapshot.
    #[error("the path does not have 1 to {LONGEST_PATH} bytes, or has control characters")]
    Path,
}

#[derive(Deserialize)]
struct Head<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Hello {
    #[serde(deserialize_with = "number")]
    version: u64,
}

/// Reads a line without its line break.
///
/// # Errors
/// When the line is not a JSON object, a key that the type requires is missing, or a value is not allowed.
pub fn parse(line: &[u8]) -> Result<Message<'_>, Invalid> {
    // The JSON parser does not check the bytes of a value that is ignored.
    let line = std::str::from_utf8(line).map_err(|_| Invalid::Form)?;
    // A struct can also be read from an array, which is not a message.
    if !line.trim_ascii_start().starts_with('{') {
        return Err(Invalid::Form);
    }
    let message = match &*read::<Head<'_>>(line)?.kind {
        "hello" => Message::Hello { version: read::<Hello>(line)?.version },
        "report" => Message::Report(read(line)?),
        "alive" => Message::Alive,
        "out_of_memory" => Message::OutOfMemory(read(line)?),
        "measurement" => Message::Measurement(read(line)?),
        "sites" => Message::Sites(read_look(line)?),
        "growth" => Message::Growth(read_look(line)?),
        "modules" => Message::Modules(read_look(line)?),
        "leaks" => Message::Question(read(line)?),
        "leak_sites" => Message::LeakSites(read(line)?),
        "answered" => Message::Answered(read(line)?),
        _ => Message::Unknown,
    };
    check(&message)?;
    Ok(message)
}

fn read<'a, T: Deserialize<'a>>(line: &'a str) -> Result<T, Invalid> {
    serde_json::from_str(line).map_err(|_| Invalid::Form)
}

/// Not inlined, so that the program contains it once.
#[inline(never)]
fn read_look(line: &str) -> Result<Look<'_>, Invalid> {
    read(line)
}

/// Checks the strings of a message.
fn check(message: &Message<'_>) -> Result<(), Invalid> {
    let (framework, device) = match message {
        Message::Report(Report { framework, device, .. })
        | Message::OutOfMemory(OutOfMemory { framework, device, .. })
        | Message::Measurement(Measurement { framework, device, .. })
        | Message::Sites(Look { framework, device, .. })
        | Message::Growth(Look { framework, device, .. })
        | Message::Modules(Look { framework, device, .. })
        | Message::LeakSites(LeakSites { framework, device, .. }) => (framework, device),
        Message::Question(question) => return question.check(),
        Message::Answered(answered) => return answered.check(),
        Message::Hello { .. } | Message::Alive | Message::Unknown => return Ok(()),
    };
    let is_word = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_';
    if !(1..=LONGEST_FRAMEWORK).contains(&framework.len()) || !framework.bytes().all(is_word) {
        return Err(Invalid::Framework);
    }
    // In the old format, the UUID of a MIG device is MIG-GPU-<uuid>/<GPU instance>/<compute instance>.
    let is_uuid = |c: u8| c.is_ascii_alphanumeric() || c == b'-' || c == b'/';
    let begins = device.starts_with("GPU-") || device.starts_with("MIG-");
    if !begins || device.len() > LONGEST_DEVICE || !device.bytes().all(is_uuid) {
        return Err(Invalid::Device);
    }
    let is_site = |text: &str| is_name(text, LONGEST_SITE);
    let are_names = |list: &[Named<'_>], most| list.len() <= most && list.iter().all(|known| is_site(&known.site));
    match message {
        Message::Measurement(Measurement { name, .. }) if !is_name(name, LONGEST_NAME) => Err(Invalid::Name),
        Message::OutOfMemory(OutOfMemory { snapshot_path: Some(path), .. })
            if !is_text(path, path.len(), LONGEST_PATH) =>
        {
            Err(Invalid::Path)
        }
        Message::OutOfMemory(OutOfMemory { site: Some(site), .. }) if !is_site(site) => Err(Invalid::Sites),
        Message::OutOfMemory(OutOfMemory { frames, .. })
            if frames.len() > MOST_FRAMES || !frames.iter().all(|frame| is_site(frame)) =>
        {
            Err(Invalid::Frames)
        }
        Message::Sites(Look { sites, .. }) | Message::Growth(Look { sites, .. }) if !are_names(sites, MOST_SITES) => {
            Err(Invalid::Sites)
        }
        Message::Sites(Look { sites, .. }) | Message::Growth(Look { sites, .. })
            if sites.iter().any(|site| site.role.is_none()) =>
        {
            Err(Invalid::Form)
        }
        Message::Growth(Look { seconds, sites, .. })
            if seconds.is_none_or(|seconds| seconds == 0) || sites.iter().any(|site| site.bytes == 0) =>
        {
            Err(Invalid::Growth)
        }
        Message::Modules(Look { modules, .. }) if !are_names(modules, MOST_MODULES) => Err(Invalid::Modules),
        Message::LeakSites(found) => found.check(),
        _ => Ok(()),
    }
}

/// Of a path, the bytes count, of a name the characters.
fn is_text(text: &str, length: usize, longest: usize) -> bool {
    (1..=longest).contains(&length) && !text.chars().any(char::is_control)
}

fn is_name(text: &str, longest: usize) -> bool {
    is_text(text, text.chars().count(), longest)
}

/// A whole number up to [`LARGEST`]. A number with a fraction or an exponent, a negative number and a number of more
/// than 64 bits are not read as `u64`.
fn number<'d, D: Deserializer<'d>>(from: D) -> Result<u64, D::Error> {
    known(from)?.ok_or_else(|| D::Error::custom("no number"))
}

fn known<'d, D: Deserializer<'d>>(from: D) -> Result<Option<u64>, D::Error> {
    match Option::<u64>::deserialize(from)? {
        Some(number) if number > LARGEST => Err(D::Error::custom("too large")),
        number => Ok(number),
    }
}

/// A number that may be null, inside a map.
#[derive(Deserialize)]
struct Known(#[serde(deserialize_with = "known")] Option<u64>);

fn change<'d, D: Deserializer<'d>>(from: D) -> Result<Change, D::Error> {
    known(from).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#""type":"report","framework":"pytorch","device":"GPU-1""#;

    fn report(more: &str) -> Result<Report<'static>, Invalid> {
        let line: &'static str = Box::leak(format!("{{{REPORT},{more}}}").into_boxed_str());
        parse(line.as_bytes()).map(|message| match message {
            Message::Report(report) => report,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn a_missing_value_is_unchanged_and_null_is_unknown() {
        let report = report(r#""allocated_bytes":5,"peak_bytes":null,"future":[{"a":1}]"#).unwrap();
        assert_eq!((report.allocated_bytes, report.peak_bytes, report.retries), (Some(Some(5)), Some(None), None));
        assert_eq!((&*report.framework, &*report.device), ("pytorch", "GPU-1"));
    }

    #[test]
    fn only_whole_numbers_up_to_2_to_the_53_are_read() {
        for number in ["0", "1", "9007199254740992"] {
            assert!(report(&format!(r#""allocated_bytes":{number}"#)).is_ok(), "{number}");
        }
        let refused = [
            "9007199254740993",
            "18446744073709551616",
            "1e400",
            "-1",
            "-0",
            "1.0",
            "1.5",
            "1e3",
            "NaN",
            "Infinity",
            "\"5\"",
            "true",
            "[5]",
            "{}",
            "",
        ];
        for number in refused {
            assert!(report(&format!(r#""allocated_bytes":{number}"#)).is_err(), "{number}");
        }
    }

    #[test]
    fn what_is_no_message_is_refused() {
        let deep = "[".repeat(4000);
        let lines = [
            "",
            " ",
            "null",
            "5",
            "[]",
            r#"["hello",1]"#,
            "{",
            "{}",
            r#"{"type":5}"#,
            r#"{"type":"hello"}"#,
            r#"{"type":"hello","version":"1"}"#,
            r#"{"type":"hello","version":1}{}"#,
            r#"{"type":"report"}"#,
            r#"{"type":"alive","type":"alive"}"#,
            &deep,
        ];
        for line in lines {
            assert!(parse(line.as_bytes()).is_err(), "{line}");
        }
        assert!(parse(b"{\"type\":\"\xff\"}").is_err());
        assert!(parse(b"{\"type\":\"alive\",\"future\":\"\xff\"}").is_err());
        let nested = format!(r#"{{"type":"x","a":{deep}"#);
        assert!(parse(nested.as_bytes()).is_err());
        assert_eq!(parse(br#"{"type":"x","a":[[]]}"#).unwrap(), Message::Unknown);
        assert_eq!(parse(b" {\"type\":\"alive\"}\r").unwrap(), Message::Alive);
    }

    #[test]
    fn names_are_checked() {
        let with = |kind: &str, framework: &str, device: &str, more: &str| {
            let line = format!(r#"{{"type":"{kind}","framework":"{framework}","device":"{device}"{more}}}"#);
            parse(line.as_bytes()).map(|_| ()).map_err(|error| error.to_string())
        };
        assert!(with("report", "my_fw_2", "MIG-GPU-aa/7/0", "").is_ok());
        for framework in ["", "PyTorch", "a b", "ä", "a\\u0000", &"a".repeat(33)] {
            assert_eq!(with("report", framework, "GPU-1", ""), Err(Invalid::Framework.to_string()), "{framework}");
        }
        for device in ["", "0", "gpu-1", "GPU-\\n", "GPU-ä", &format!("GPU-{}", "a".repeat(93))] {
            assert_eq!(with("report", "jax", device, ""), Err(Invalid::Device.to_string()), "{device}");
        }
        let named = |name: &str| with("measurement", "jax", "GPU-1", &format!(r#","name":"{name}","peak_bytes":1"#));
        for name in ["", "a\\nb", "a\\u0000", &"ü".repeat(65)] {
            assert_eq!(named(name), Err(Invalid::Name.to_string()), "{name}");
        }
        assert_eq!((named(&"ü".repeat(64)), named("\\\"} 1")), (Ok(()), Ok(())));
        let at = |sites: &str| with("sites", "jax", "GPU-1", &format!(r#","sites":[{sites}]"#));
        let site = |name: &str| format!(r#"{{"site":"{name}","role":"new","bytes":1}}"#);
        for sites in [site(""), site("a\\nb"), site(&"ü".repeat(129)), vec![site("a:1 f"); 11].join(",")] {
            assert_eq!(at(&sites), Err(Invalid::Sites.to_string()), "{sites}");
        }
        assert_eq!((at(&vec![site(&"ü".repeat(128)); 10].join(",")), at("")), (Ok(()), Ok(())));
        assert_eq!(at(r#"{"site":"a:1 f","role":"new","bytes":-1}"#), Err(Invalid::Form.to_string()));
        let roles = |roles: &str| with("sites", "jax", "GPU-1", &format!(r#","roles":{roles}"#));
        assert_eq!((roles(r#"{"other":9007199254740992,"x":1,"y":null}"#), roles("{}")), (Ok(()), Ok(())));
        for wrong in [r#"{"other":1,"other":1}"#, r#"{"other":9007199254740993}"#, r#"{"x":-1}"#, "[1]", "5"] {
            assert_eq!(roles(wrong), Err(Invalid::Form.to_string()), "{wrong}");
        }
        let dumped = |path: &str| {
            with("out_of_memory", "jax", "GPU-1", &format!(r#","requested_bytes":1,"snapshot_path":"{path}""#))
        };
        for path in ["", "a\\u001b", &"a".repeat(1025)] {
            assert_eq!(dumped(path), Err(Invalid::Path.to_string()), "{path}");
        }
        assert_eq!(dumped("/tmp/snapshot.pickle"), Ok(()));
    }

    #[test]
    fn growth_modules_and_frames_have_bounds() {
        let with = |kind: &str, more: &str| {
            let line = format!(r#"{{"type":"{kind}","framework":"jax","device":"GPU-1",{more}}}"#);
            parse(line.as_bytes()).map(|_| ()).map_err(|error| error.to_string())
        };
        let refused = |invalid: Invalid| Err(invalid.to_string());
        let hostile = ["", "a\\nb", "a\\u001b[2J", &"ü".repeat(129)];
        let site = |name: &str, bytes: &str| format!(r#"{{"site":"{name}","role":"new","bytes":{bytes}}}"#);
        let grew = |seconds: &str, sites: &str| with("growth", &format!(r#""seconds":{seconds},"sites":[{sites}]"#));
        assert_eq!((grew("1", ""), grew("12", &vec![site(&"ü".repeat(128), "1"); 10].join(","))), (Ok(()), Ok(())));
        assert_eq!(grew("1", &vec![site("a:1 f", "1"); 11].join(",")), refused(Invalid::Sites));
        for name in hostile {
            assert_eq!(grew("1", &site(name, "1")), refused(Invalid::Sites), "{name}");
        }
        assert_eq!(
            (grew("0", ""), grew("1", &site("a:1 f", "0"))),
            (refused(Invalid::Growth), refused(Invalid::Growth))
        );
        for number in ["-1", "0.5", "9007199254740993"] {
            assert_eq!(grew(number, ""), refused(Invalid::Form), "{number}");
            assert_eq!(grew("1", &site("a:1 f", number)), refused(Invalid::Form), "{number}");
        }
        assert_eq!(with("growth", r#""sites":[]"#), refused(Invalid::Growth), "without seconds");
        let without_role = r#""seconds":1,"sites":[{"site":"a:1 f","bytes":1}]"#;
        assert_eq!(
            (with("growth", without_role), with("sites", without_role)),
            (refused(Invalid::Form), refused(Invalid::Form))
        );
        let module = |name: &str, bytes: &str| format!(r#"{{"module":"{name}","bytes":{bytes}}}"#);
        let divided = |modules: &str| with("modules", &format!(r#""modules":[{modules}]"#));
        assert_eq!((divided(""), divided(&vec![module(&"ü".repeat(128), "0"); 10].join(","))), (Ok(()), Ok(())));
        assert_eq!(divided(&vec![module("m", "1"); 11].join(",")), refused(Invalid::Modules));
        for name in hostile {
            assert_eq!(divided(&module(name, "1")), refused(Invalid::Modules), "{name}");
        }
        assert_eq!(divided(&module("m", "-1")), refused(Invalid::Form));
        assert_eq!(with("modules", r#""modules":[],"other_bytes":1.5"#), refused(Invalid::Form));
        assert_eq!(
            with("modules", r#""modules":[{"site":"m","module":"m","bytes":1}]"#),
            refused(Invalid::Form),
            "two names"
        );
        let failed = |more: &str| with("out_of_memory", &format!(r#""requested_bytes":1,{more}"#));
        let frames = |count: usize| failed(&format!(r#""frames":[{}]"#, vec![r#""a.py:1 f""#; count].join(",")));
        assert_eq!((frames(0), frames(16), frames(17)), (Ok(()), Ok(()), refused(Invalid::Frames)));
        for name in hostile {
            assert_eq!(failed(&format!(r#""frames":["a.py:1 f","{name}"]"#)), refused(Invalid::Frames), "{name}");
            assert_eq!(failed(&format!(r#""site":"{name}""#)), refused(Invalid::Sites), "{name}");
        }
        assert_eq!(failed(r#""site":null,"largest_free_block_bytes":null"#), Ok(()), "not known");
        for wrong in [r#""frames":"a.py:1 f""#, r#""frames":[5]"#, r#""site":5"#, r#""largest_free_block_bytes":-1"#] {
            assert_eq!(failed(wrong), refused(Invalid::Form), "{wrong}");
        }
    }
}
