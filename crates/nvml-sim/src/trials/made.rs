//! Scenarios made of the grammar's own keys.

use std::fmt::Write;

use super::CONTROL;
use super::pieces::Pieces;

const MODELS: [&str; 6] = ["H200", "A100-40GB", "A100-80GB", "L4", "RTX 4090", "GB10"];
const PROFILES: [&str; 6] = ["", "1g.5gb", "1g.10gb", "2g.10gb", "3g.40gb", "7g.80gb"];
const CALLS: [&str; 6] =
    ["nvmlDeviceGetMemoryInfo", "nvmlDeviceGetName", "nvmlInit_v2", "nvmlDeviceGetUUID", "*", "nvml"];
const SPANS: [&str; 24] = [
    "1ms",
    "10ms",
    "1s",
    "2s",
    "5s",
    "1m",
    "1h",
    "1d",
    "0s",
    "1us",
    "0.001us",
    "20ms",
    "1s",
    "10s",
    "1h30m",
    "-2h",
    "-100d",
    "37000d",
    "-37000d",
    "106751d",
    "0.0000001us",
    "-0s",
    "1.5s",
    "400d",
];
const SIZES: [&str; 18] = [
    "0B", "1B", "1MiB", "2MiB", "64MiB", "100MiB", "256MiB", "512MiB", "1GiB", "2GiB", "4GiB", "20GiB", "141GiB",
    "8000TiB", "0.5KiB", "8185TiB", "unknown", "4GB",
];
const NUMBERS: [&str; 24] = [
    "0",
    "0",
    "0",
    "0",
    "0",
    "0",
    "1",
    "1",
    "1",
    "1",
    "2",
    "2",
    "2",
    "7",
    "64",
    "128",
    "16384",
    "4194303",
    "2097152",
    "4294967295",
    "-1",
    "0.5",
    "nan",
    "1e308",
];
const KINDS: [&str; 8] = ["constant", "ramp", "step", "spike", "leak", "sawtooth", "wave", "noise"];

/// A scenario, and sometimes a control file.
pub(super) fn scenario(pieces: &mut Pieces<'_>) -> String {
    let mut text = String::new();
    if pieces.once_in(4) {
        put(&mut text, "seed", pieces.pick(&NUMBERS));
    }
    if pieces.once_in(8) {
        put(&mut text, "calls_missing", &format!("[{:?}]", pieces.pick(&CALLS)));
    }
    for _ in 0..1 + pieces.below(2) {
        gpu(&mut text, pieces);
    }
    entries(&mut text, pieces);
    if pieces.once_in(3) {
        text += &CONTROL[1..];
        entries(&mut text, pieces);
    }
    text
}

fn put(text: &mut String, key: &str, value: &str) {
    writeln!(text, "{key} = {value}").expect("a String takes everything");
}

fn entries(text: &mut String, pieces: &mut Pieces<'_>) {
    for _ in 0..pieces.below(5) {
        match pieces.below(12) {
            0 => xid(text, pieces),
            1 => fault(text, pieces),
            2 => container(text, pieces),
            _ => process(text, pieces),
        }
    }
}

fn span(pieces: &mut Pieces<'_>) -> String {
    format!("{:?}", pieces.pick(&SPANS))
}

fn size(pieces: &mut Pieces<'_>) -> String {
    format!("{:?}", pieces.pick(&SIZES))
}

fn gpu(text: &mut String, pieces: &mut Pieces<'_>) {
    text.push_str("[[gpu]]\n");
    put(text, "model", &format!("{:?}", pieces.pick(&MODELS)));
    if pieces.once_in(4) {
        put(text, "count", pieces.pick(&NUMBERS));
    }
    if pieces.once_in(6) {
        let profiles: Vec<_> = (0..pieces.below(9)).map(|_| format!("{:?}", pieces.pick(&PROFILES))).collect();
        put(text, "mig", &format!("[{}]", profiles.join(", ")));
    }
    for key in ["temperature", "power"] {
        if pieces.once_in(8) {
            put(text, key, pieces.pick(&["1.0", "0.0", "50", "700.5", "-1.0", "nan", "inf", "1e308"]));
        }
    }
    if pieces.once_in(8) {
        put(text, "unsupported", &format!("[{:?}]", pieces.pick(&CALLS)));
    }
}

fn process(text: &mut String, pieces: &mut Pieces<'_>) {
    text.push_str("[[process]]\n");
    for key in ["pid", "count", "gpu", "mig", "uid"] {
        if pieces.once_in(8) {
            put(text, key, pieces.pick(&NUMBERS));
        }
    }
    if pieces.once_in(6) {
        put(text, "gpus", pieces.pick(&["[]", "[0]", "[0, 1]", "[0, 0]", "[1, 9]"]));
    }
    if pieces.once_in(3) {
        put(
            text,
            "type",
            pieces.pick(&[
                "\"mps\"",
                "[\"mps\"]",
                "\"compute\"",
                "[]",
                "[\"compute\", \"graphics\"]",
                "\"graphics\"",
                "7",
            ]),
        );
    }
    for key in ["start", "end", "repeat"] {
        if pieces.once_in(5) {
            put(text, key, &span(pieces));
        }
    }
    for key in ["command", "comm", "user", "cgroup"] {
        if pieces.once_in(4) {
            let hostile = pieces.text(12).replace('\'', "\\x27").replace(['\n', '\r'], "\\x0a");
            let value = format!("'{hostile}{}'", pieces.pick(&["", "{n}", "\\xff", "\\x0"]));
            put(text, key, &if key == "command" { format!("[{value}]") } else { value });
        }
    }
    for (key, of) in [("memory", size as fn(&mut Pieces<'_>) -> String), ("utilization", ratio)] {
        match pieces.below(4) {
            0 => {}
            1 => put(text, key, &of(pieces)),
            _ => {
                let phases: Vec<_> = (0..pieces.below(4)).map(|_| phase(pieces, of)).collect();
                put(text, key, &format!("[{}]", phases.join(", ")));
                if pieces.once_in(3) {
                    put(text, &format!("{key}_cycle"), "true");
                }
            }
        }
    }
    if pieces.once_in(6) {
        put(text, "context", &size(pieces));
    }
}

fn ratio(pieces: &mut Pieces<'_>) -> String {
    pieces.pick(&["0.0", "0.1", "0.2", "0.5", "0.9", "0.99", "1.0", "1", "0", "2", "nan", "-0.0"]).to_owned()
}

/// A phase with the keys of its kind, and now and then one too few or too many.
fn phase(pieces: &mut Pieces<'_>, of: fn(&mut Pieces<'_>) -> String) -> String {
    let kind = pieces.pick(&KINDS);
    let (quantities, spans): (&[&str], &[&str]) = match kind {
        "constant" => (&["value"], &[]),
        "ramp" => (&["from", "to"], &["for"]),
        "step" => (&["from", "by", "limit"], &["every"]),
        "spike" => (&["base", "peak"], &["hold", "every", "after", "jitter"]),
        "leak" => (&["base", "rate", "limit"], &[]),
        _ => (&["low", "high"], &["every"]),
    };
    let mut text = format!("{{ kind = \"{kind}\"");
    for key in quantities.iter().filter(|key| **key != "limit") {
        write!(text, ", {key} = {}", of(pieces)).expect("a String takes everything");
    }
    for key in spans {
        if *key == "every" || *key == "hold" || *key == "for" || pieces.once_in(3) {
            write!(text, ", {key} = {}", span(pieces)).expect("a String takes everything");
        }
    }
    if quantities.contains(&"limit") && pieces.once_in(2) {
        write!(text, ", limit = {}", of(pieces)).expect("a String takes everything");
    }
    if !spans.contains(&"for") && pieces.once_in(2) {
        write!(text, ", for = {}", span(pieces)).expect("a String takes everything");
    }
    text + " }"
}

fn xid(text: &mut String, pieces: &mut Pieces<'_>) {
    text.push_str("[[xid]]\n");
    put(text, "code", pieces.pick(&NUMBERS));
    if pieces.once_in(4) {
        put(text, "gpu", pieces.pick(&NUMBERS));
    }
    for key in ["at", "every"] {
        if pieces.once_in(2) {
            put(text, key, &span(pieces));
        }
    }
}

fn fault(text: &mut String, pieces: &mut Pieces<'_>) {
    text.push_str("[[fault]]\n");
    put(text, "kind", pieces.pick(&["\"error\"", "\"hang\"", "\"slow\"", "\"grow\"", "\"absent\""]));
    if pieces.once_in(2) {
        put(text, "call", &format!("{:?}", pieces.pick(&CALLS)));
    }
    for (key, value) in [("code", "\"GPU_IS_LOST\""), ("gpu", "0"), ("by", "4294967295")] {
        if pieces.once_in(2) {
            put(text, key, value);
        }
    }
    for key in ["delay", "from", "until"] {
        if pieces.once_in(2) {
            put(text, key, &span(pieces));
        }
    }
}

fn container(text: &mut String, pieces: &mut Pieces<'_>) {
    text.push_str("[[container]]\n");
    put(text, "id", &format!("\"{}\"", pieces.pick(&["a", "0", "F"]).repeat(64)));
    for key in ["namespace", "pod", "name"] {
        put(text, key, &format!("{:?}", pieces.pick(&["a", "", "b\u{7f}", "c/d"])));
    }
    if pieces.once_in(2) {
        put(text, "gpus", pieces.pick(&["[0]", "[0, 9]", "[]"]));
    }
}
