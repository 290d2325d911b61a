//! Any line of the allocator protocol: the values read are those that a strict JSON reader finds in it, and no value
//! beyond the protocol's limits is accepted.

use gpu_readings::allocator::message::{Message, Report, parse};
use serde_json::Value;

use crate::choices::{Choose, Unstructured, choices};

/// The largest number that the protocol allows.
const LARGEST: u64 = 1 << 53;
const NUMBERS: [&str; 10] = [
    "allocated_bytes",
    "reserved_bytes",
    "high_bytes",
    "peak_bytes",
    "peak_reserved_bytes",
    "limit_bytes",
    "largest_free_block_bytes",
    "inactive_split_bytes",
    "retries",
    "out_of_memory",
];

/// Reads a line. True if it is a message.
pub fn allocator(data: &[u8]) -> bool {
    let line = match choices(data) {
        Some(mut u) => arbitrary(&mut u),
        None => data.to_vec(),
    };
    let Ok(message) = parse(&line) else { return false };
    let text = line.escape_ascii().to_string();
    let value: Value = match serde_json::from_slice(&line) {
        Ok(value) => value,
        // The error is in the value of a key that no message has.
        Err(error) if ["out of range", "surrogate"].iter().any(|what| error.to_string().contains(what)) => return true,
        Err(error) => panic!("{text} is no JSON: {error}"),
    };
    assert!(value.is_object(), "{text}");
    let string = |key: &str| value[key].as_str().unwrap_or_default();
    let named = |framework: &str, device: &str| {
        assert_eq!((framework, device), (string("framework"), string("device")), "{text}");
        assert!((1..=32).contains(&framework.len()) && framework.is_ascii(), "{text}");
        assert!(device.is_ascii() && device.len() <= 96 && !device.contains(|c: char| c.is_ascii_control()), "{text}");
    };
    let number = |key: &str, read: Option<u64>| {
        assert_eq!(read, value[key].as_u64(), "{key} in {text}");
        assert!(read.is_none_or(|read| read <= LARGEST), "{key} in {text}");
    };
    match message {
        Message::Hello { version } => number("version", Some(version)),
        Message::Report(report) => {
            named(&report.framework, &report.device);
            for (key, read) in NUMBERS.into_iter().zip(numbers(&report)) {
                assert_eq!(read.is_some(), value.get(key).is_some(), "{key} in {text}");
                number(key, read.flatten());
            }
        }
        Message::OutOfMemory(failed) => {
            named(&failed.framework, &failed.device);
            number("requested_bytes", Some(failed.requested_bytes));
            number("free_bytes", failed.free_bytes);
            number("total_bytes", failed.total_bytes);
            number("allocated_bytes", failed.allocated_bytes);
            number("reserved_bytes", failed.reserved_bytes);
            number("largest_free_block_bytes", failed.largest_free_block_bytes);
            assert_eq!(failed.site.as_deref(), value["site"].as_str(), "{text}");
            assert!(failed.site.as_deref().is_none_or(is_site), "{text}");
            let frames = value["frames"].as_array().map_or(&[][..], Vec::as_slice);
            assert!(failed.frames.iter().map(|frame| Some(&**frame)).eq(frames.iter().map(Value::as_str)), "{text}");
            assert!(failed.frames.len() <= 16 && failed.frames.iter().all(|frame| is_site(frame)), "{text}");
            assert_eq!(failed.snapshot_path.as_deref(), value["snapshot_path"].as_str(), "{text}");
            assert!(failed.snapshot_path.is_none_or(|path| path.len() <= 1024 && !path.contains(char::is_control)));
        }
        Message::Measurement(measured) => {
            named(&measured.framework, &measured.device);
            assert_eq!(measured.name, string("name"), "{text}");
            assert!((1..=64).contains(&measured.name.chars().count()) && !measured.name.contains(char::is_control));
            number("peak_bytes", Some(measured.peak_bytes));
            number("peak_reserved_bytes", measured.peak_reserved_bytes);
        }
        Message::Sites(looked) => {
            named(&looked.framework, &looked.device);
            number("other_bytes", looked.other_bytes);
            number("unknown_bytes", looked.unknown_bytes);
            same_bytes(&value["sites"], looked.sites.iter().map(|known| (&*known.site, known.bytes)));
        }
        Message::Growth(growth) => {
            named(&growth.framework, &growth.device);
            number("seconds", growth.seconds);
            same_bytes(&value["sites"], growth.sites.iter().map(|known| (&*known.site, known.bytes)));
            assert!(growth.seconds > Some(0) && growth.sites.iter().all(|site| site.bytes > 0), "{text}");
        }
        Message::Modules(divided) => {
            named(&divided.framework, &divided.device);
            number("other_bytes", divided.other_bytes);
            same_bytes(&value["modules"], divided.modules.iter().map(|known| (&*known.site, known.bytes)));
        }
        Message::Question(asked) => {
            number("version", Some(asked.version));
            number("pid", Some(asked.pid.into()));
            number("seconds", Some(asked.seconds));
            number("looks", Some(asked.looks));
            assert!((1..=600).contains(&asked.seconds) && (3..=20).contains(&asked.looks), "{text}");
        }
        Message::LeakSites(part) => {
            named(&part.framework, &part.device);
            number("id", Some(part.id));
            number("seconds", Some(part.seconds));
            number("looks", Some(part.looks));
            number("steps", part.steps);
            number("more_sites", part.more_sites);
            number("unrecorded_bytes", part.unrecorded_bytes);
            let sites = value["sites"].as_array().map_or(&[][..], Vec::as_slice);
            assert!(part.sites.len() == sites.len() && sites.len() <= 10, "{text}");
            for (read, site) in part.sites.iter().zip(sites) {
                let bytes = |key: &str| site[key].as_u64();
                assert_eq!((Some(&*read.site), Some(read.bytes)), (site["site"].as_str(), bytes("bytes")), "{text}");
                assert_eq!(Some(read.live_bytes), bytes("live_bytes"), "{text}");
                assert!((1..=128).contains(&read.site.chars().count()) && !read.site.contains(char::is_control));
            }
        }
        Message::Answered(answered) => {
            number("id", Some(answered.id));
            assert_eq!(answered.reason.as_deref(), value["reason"].as_str(), "{text}");
            assert!(answered.reason.is_none_or(|reason| (1..=32).contains(&reason.len()) && reason.is_ascii()));
        }
        Message::Alive => assert_eq!(string("type"), "alive", "{text}"),
        Message::Unknown => {
            let known = [
                "hello",
                "report",
                "alive",
                "out_of_memory",
                "measurement",
                "sites",
                "growth",
                "modules",
                "leaks",
                "leak_sites",
                "answered",
            ];
            assert!(!known.contains(&string("type")), "{text}");
        }
    }
    true
}

/// Whether a text is like a call site.
fn is_site(text: &str) -> bool {
    (1..=128).contains(&text.chars().count()) && !text.contains(char::is_control)
}

/// Compares what was read of a list of names with bytes.
fn same_bytes<'r>(list: &Value, read: impl ExactSizeIterator<Item = (&'r str, u64)>) {
    let written = list.as_array().map_or(&[][..], Vec::as_slice);
    assert!(read.len() == written.len() && written.len() <= 10, "{list}");
    for ((name, bytes), entry) in read.zip(written) {
        let written = entry["site"].as_str().or(entry["module"].as_str());
        assert_eq!((Some(name), Some(bytes)), (written, entry["bytes"].as_u64()), "{list}");
        assert!(is_site(name), "{list}");
    }
}

fn numbers(report: &Report<'_>) -> [Option<Option<u64>>; NUMBERS.len()] {
    [
        report.allocated_bytes,
        report.reserved_bytes,
        report.high_bytes,
        report.peak_bytes,
        report.peak_reserved_bytes,
        report.limit_bytes,
        report.largest_free_block_bytes,
        report.inactive_split_bytes,
        report.retries,
        report.out_of_memory,
    ]
}

/// A line that is nearly a message, or is one.
fn arbitrary(u: &mut Unstructured<'_>) -> Vec<u8> {
    let kind = u.pick(&[
        "report",
        "out_of_memory",
        "measurement",
        "sites",
        "growth",
        "modules",
        "hello",
        "alive",
        "leaks",
        "leak_sites",
        "answered",
        "other",
        "REPORT",
    ]);
    let framework = u.pick(&["pytorch", "jax", "a_1", "PyTorch", "", "x\\u0000"]);
    let device = u.pick(&["GPU-5b7b3b8a", "MIG-GPU-1/7/0", "GPU-\\n", "0"]);
    let mut keys = vec![format!("\"type\":\"{kind}\"")];
    if !u.once_in(8) {
        keys.push(format!("\"framework\":\"{framework}\",\"device\":\"{device}\""));
    }
    while !u.is_empty() && keys.len() < 40 {
        let key = match u.below(4) {
            0 => u.pick(&["requested_bytes", "free_bytes", "total_bytes", "version", "other_bytes", "unknown_bytes"]),
            1 => u.pick(&[
                "name",
                "snapshot_path",
                "future",
                "exact",
                "seconds",
                "pid",
                "id",
                "looks",
                "steps",
                "reason",
            ]),
            _ => u.pick(&NUMBERS),
        };
        if u.once_in(16) {
            let site = u.pick(&["a.py:1 f", "", "a\\n", "\\u202e"]);
            let sites =
                vec![
                    format!("{{\"site\":\"{site}\",\"role\":\"x\",\"bytes\":{0},\"live_bytes\":{0}}}", u.number());
                    u.below(12)
                ];
            keys.push(format!("\"sites\":[{}]", sites.join(",")));
            let modules = vec![format!("{{\"module\":\"{site}\",\"bytes\":{}}}", u.number()); u.below(12)];
            keys.push(format!("\"modules\":[{}]", modules.join(",")));
            keys.push(format!(
                "\"site\":\"{site}\",\"frames\":[{}]",
                vec![format!("\"{site}\""); u.below(18)].join(",")
            ));
        }
        let value = match u.below(12) {
            0 => "null".to_owned(),
            1 => u
                .pick(&["-1", "1.5", "1e3", "-0", "NaN", "18446744073709551616", "true", "[]", "{\"a\":[1]}"])
                .to_owned(),
            2 => (LARGEST + u64::from(u.byte() & 1)).to_string(),
            3 => format!("\"{}\"", u.pick(&["forward", "a\\\"b", "\\u001b", "ü", "/tmp/s.pickle"])),
            4 => serde_json::to_string(&u.text(80)).unwrap_or_default(),
            _ => u.number().to_string(),
        };
        keys.push(format!("\"{key}\":{value}"));
    }
    if u.once_in(8) {
        let last = keys.len() - 1;
        keys.swap(0, last.min(1));
    }
    format!("{{{}}}", keys.join(",")).into_bytes()
}
