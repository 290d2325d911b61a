//! Scenarios built from the grammar's own keys.

use std::fmt::Write;

use super::CONTROL;
use crate::choices::{Choose, Unstructured};

const MODELS: [&str; 8] = ["H200", "B200", "RTX 5090", "A100-40GB", "A100-80GB", "L4", "RTX 4090", "GB10"];
const PROFILES: [&str; 6] = ["", "1g.5gb", "1g.10gb", "2g.10gb", "3g.40gb", "7g.80gb"];
const CALLS: [&str; 6] =
    ["nvmlDeviceGetMemoryInfo", "nvmlDeviceGetName", "nvmlInit_v2", "nvmlDeviceGetUUID", "*", "nvml"];
const SPANS: &str = "
    1ms 10ms 1s 2s 5s 1m 1h 1d 0s 1us 0.001us 20ms 1s 10s 1h30m -2h -100d 37000d -37000d 106751d 0.0000001us -0s
    1.5s 400d
";
const SIZES: &str =
    "0B 1B 1MiB 2MiB 64MiB 100MiB 256MiB 512MiB 1GiB 2GiB 4GiB 20GiB 141GiB 8000TiB 0.5KiB 8185TiB unknown 4GB";
const NUMBERS: &str = "0 0 0 0 0 0 1 1 1 1 2 2 2 7 64 128 16384 4194303 2097152 4294967295 -1 0.5 nan 1e308";
const KINDS: &str = "constant ramp step spike leak sawtooth wave noise";

/// A scenario, and sometimes a control file.
pub(super) fn scenario(u: &mut Unstructured<'_>) -> String {
    let mut text = String::new();
    if u.once_in(4) {
        put(&mut text, "seed", u.word(NUMBERS));
    }
    if u.once_in(4) {
        put(&mut text, "driver", u.pick(&["{ cuda = 13050 }", "{ cuda = 13049 }", "{ cuda = -1 }"]));
    }
    if u.once_in(8) {
        put(&mut text, "calls_missing", &format!("[{:?}]", u.pick(&CALLS)));
    }
    for _ in 0..1 + u.below(2) {
        gpu(&mut text, u);
    }
    entries(&mut text, u);
    if u.once_in(3) {
        text += &CONTROL[1..];
        entries(&mut text, u);
    }
    text
}

fn put(text: &mut String, key: &str, value: &str) {
    writeln!(text, "{key} = {value}").expect("writing to a String cannot fail");
}

fn entries(text: &mut String, u: &mut Unstructured<'_>) {
    for _ in 0..u.below(5) {
        match u.below(12) {
            0 => xid(text, u),
            1 => fault(text, u),
            2 => container(text, u),
            3 => memory_limit(text, u),
            4 => vgpu(text, u),
            _ => process(text, u),
        }
    }
}

fn vgpu(text: &mut String, u: &mut Unstructured<'_>) {
    text.push_str("[[vgpu]]\n");
    put(text, "vm", u.pick(&["\"7\"", "\"a84d1c2e-0f3b-4c5d-8e9f-000000000001\"", "\"\"", "\"\\u0000\""]));
    put(text, "memory", &size(u));
    if u.once_in(4) {
        put(text, "gpu", u.word(NUMBERS));
    }
}

fn memory_limit(text: &mut String, u: &mut Unstructured<'_>) {
    text.push_str("[[memory_limit]]\n");
    put(text, "cgroup", u.pick(&["\"/a\"", "\"/a\"", "\"/\"", "\"\"", "'/\\xff'", "'/\\x00'"]));
    for key in ["hard", "soft"] {
        if u.once_in(2) {
            put(text, key, &size(u));
        }
    }
    if u.once_in(4) {
        put(text, "gpu", u.word(NUMBERS));
    }
}

fn span(u: &mut Unstructured<'_>) -> String {
    format!("{:?}", u.word(SPANS))
}

fn size(u: &mut Unstructured<'_>) -> String {
    format!("{:?}", u.word(SIZES))
}

fn gpu(text: &mut String, u: &mut Unstructured<'_>) {
    text.push_str("[[gpu]]\n");
    put(text, "model", &format!("{:?}", u.pick(&MODELS)));
    if u.once_in(4) {
        put(text, "count", u.word(NUMBERS));
    }
    if u.once_in(6) {
        let profiles: Vec<_> = (0..u.below(9)).map(|_| format!("{:?}", u.pick(&PROFILES))).collect();
        put(text, "mig", &format!("[{}]", profiles.join(", ")));
    }
    for key in ["temperature", "power"] {
        if u.once_in(8) {
            put(text, key, u.pick(&["1.0", "0.0", "50", "700.5", "-1.0", "nan", "inf", "1e308"]));
        }
    }
    if u.once_in(8) {
        put(text, "link", u.pick(&["{}", "{ width = 8 }", "{ generation = 3, max_width = 0 }", "{ generation = -1 }"]));
    }
    if u.once_in(8) {
        put(text, "addressing_mode", u.pick(&["\"ats\"", "\"none\"", "\"ATS\"", "2"]));
    }
    if u.once_in(8) {
        put(text, "module_id", u.word(NUMBERS));
    }
    if u.once_in(8) {
        put(
            text,
            "errors",
            u.pick(&["{ recovery_action = 3 }", "{ remap_banks = [1, 0, 0, 0, 0] }", "{ remap_banks = [] }"]),
        );
    }
    if u.once_in(8) {
        put(text, "unsupported", &format!("[{:?}]", u.pick(&CALLS)));
    }
}

fn process(text: &mut String, u: &mut Unstructured<'_>) {
    text.push_str("[[process]]\n");
    for key in ["pid", "namespace_pid", "count", "gpu", "mig", "uid"] {
        if u.once_in(8) {
            put(text, key, u.word(NUMBERS));
        }
    }
    if u.once_in(6) {
        put(text, "gpus", u.pick(&["[]", "[0]", "[0, 1]", "[0, 0]", "[1, 9]"]));
    }
    if u.once_in(3) {
        put(
            text,
            "type",
            u.pick(&["\"mps\"", "[\"mps\"]", "\"compute\"", "[]", "[\"compute\", \"graphics\"]", "\"graphics\"", "7"]),
        );
    }
    for key in ["start", "end", "repeat"] {
        if u.once_in(5) {
            put(text, key, &span(u));
        }
    }
    for key in ["command", "environment", "comm", "user", "cgroup"] {
        if u.once_in(4) {
            let hostile = u.text(12).replace('\'', "\\x27").replace(['\n', '\r'], "\\x0a");
            let value = format!("'{hostile}{}'", u.pick(&["", "{n}", "\\xff", "\\x0"]));
            put(text, key, &if matches!(key, "command" | "environment") { format!("[{value}]") } else { value });
        }
    }
    if u.once_in(6) {
        let (framework, share) = (u.pick(&["jax", "", "JAX", "a\\tb"]), u.pick(&["0.5", "1", "1.5", "nan"]));
        put(text, "allocator", &format!("{{ framework = \"{framework}\", allocated = {share} }}"));
    }
    for (key, of) in [("memory", size as fn(&mut Unstructured<'_>) -> String), ("utilization", ratio)] {
        match u.below(4) {
            0 => {}
            1 => put(text, key, &of(u)),
            _ => {
                let phases: Vec<_> = (0..u.below(4)).map(|_| phase(u, of)).collect();
                put(text, key, &format!("[{}]", phases.join(", ")));
                if u.once_in(3) {
                    put(text, &format!("{key}_cycle"), "true");
                }
            }
        }
    }
    if u.once_in(6) {
        put(text, "context", &size(u));
    }
}

fn ratio(u: &mut Unstructured<'_>) -> String {
    u.pick(&["0.0", "0.1", "0.2", "0.5", "0.9", "0.99", "1.0", "1", "0", "2", "nan", "-0.0"]).to_owned()
}

/// A phase with the keys of its kind, and sometimes one key too few or too many.
fn phase(u: &mut Unstructured<'_>, of: fn(&mut Unstructured<'_>) -> String) -> String {
    let kind = u.word(KINDS);
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
        write!(text, ", {key} = {}", of(u)).expect("writing to a String cannot fail");
    }
    for key in spans {
        if *key == "every" || *key == "hold" || *key == "for" || u.once_in(3) {
            write!(text, ", {key} = {}", span(u)).expect("writing to a String cannot fail");
        }
    }
    if quantities.contains(&"limit") && u.once_in(2) {
        write!(text, ", limit = {}", of(u)).expect("writing to a String cannot fail");
    }
    if !spans.contains(&"for") && u.once_in(2) {
        write!(text, ", for = {}", span(u)).expect("writing to a String cannot fail");
    }
    text + " }"
}

fn xid(text: &mut String, u: &mut Unstructured<'_>) {
    text.push_str("[[xid]]\n");
    put(text, "code", u.word(NUMBERS));
    if u.once_in(4) {
        put(text, "gpu", u.word(NUMBERS));
    }
    for key in ["at", "every"] {
        if u.once_in(2) {
            put(text, key, &span(u));
        }
    }
}

fn fault(text: &mut String, u: &mut Unstructured<'_>) {
    text.push_str("[[fault]]\n");
    let kinds = ["error", "hang", "slow", "grow", "absent", "implausible", "recut"];
    put(text, "kind", &format!("{:?}", u.pick(&kinds)));
    if u.once_in(2) {
        put(text, "call", &format!("{:?}", u.pick(&CALLS)));
    }
    for (key, value) in
        [("code", "\"GPU_IS_LOST\""), ("gpu", "0"), ("by", "4294967295"), ("mig", "0"), ("value", "\"ones\"")]
    {
        if u.once_in(2) {
            put(text, key, value);
        }
    }
    for key in ["delay", "from", "until"] {
        if u.once_in(2) {
            put(text, key, &span(u));
        }
    }
}

fn container(text: &mut String, u: &mut Unstructured<'_>) {
    text.push_str("[[container]]\n");
    put(text, "id", &format!("\"{}\"", u.pick(&["a", "0", "F"]).repeat(64)));
    for key in ["namespace", "pod", "name"] {
        put(text, key, &format!("{:?}", u.pick(&["a", "", "b\u{7f}", "c/d"])));
    }
    if u.once_in(2) {
        put(text, "gpus", u.pick(&["[0]", "[0, 9]", "[]"]));
    }
}
