//! Configurations built from the table of keys. Most of each one is valid, so that parsing gets to the invalid part.

use vram_exporter::config::keys::{Key, SECTIONS, keys};
use vram_exporter::config::setting::Kind;

use super::Given;
use crate::choices::{Choose, Unstructured};

/// Strings with a special meaning to a parser of TOML, YAML, addresses, durations or filters.
const MEANING: [&str; 32] = [
    "",
    "\"",
    "'",
    "\\",
    "null",
    "~",
    "true",
    "-1",
    "1e308",
    ".inf",
    "nan",
    "0x10",
    "1_000",
    "[]",
    "{}",
    "[[\"a\"]]",
    "&a [*a]",
    "!!binary aGk=",
    "|\n  a",
    "'''",
    "\"\"\"",
    "1979-05-27",
    "\u{85}\u{2028}",
    "99999999999999999999",
    "18446744073709551615",
    "-9223372036854775808",
    "0.1",
    ":0",
    "[::1]:1",
    "1h1m1s1ms1us1ns",
    "info,a=debug",
    "https://a",
];

pub(super) fn given(u: &mut Unstructured<'_>) -> Given {
    let mut given = Given::default();
    match u.below(4) {
        0 => given.file = Some(("toml", toml(u))),
        1 => given.file = Some(("yml", yaml(u))),
        2 => given.arguments = (0..u.below(8)).map(|_| argument(u)).collect(),
        _ => given.variables = (0..u.below(8)).map(|_| variable(u)).collect(),
    }
    if u.once_in(3) {
        given.arguments.push(argument(u));
        given.variables.push(variable(u));
    }
    given
}

fn key(u: &mut Unstructured<'_>) -> &'static Key {
    let all: Vec<&Key> = keys().collect();
    all[u.below(all.len())]
}

/// A value as text, mostly of the kind that the key requires.
fn value(u: &mut Unstructured<'_>, key: &Key) -> String {
    match u.below(8) {
        0 => return u.pick(&MEANING).to_owned(),
        1 => return u.text(70),
        _ => {}
    }
    match key.kind {
        Kind::Addresses(_) => {
            let address = |u: &mut Unstructured<'_>| match u.below(4) {
                0 => format!("[fe80::{:x}%{}]:{}", u.byte(), u.byte(), u.byte()),
                1 => format!("127.0.0.{}:{}", u.byte(), u.number()),
                2 => format!("[::{}]:{}", u.byte(), u.byte()),
                _ => format!(":{}", u.number() % 70_000),
            };
            (0..1 + u.below(3)).map(|_| address(u)).collect::<Vec<_>>().join(",")
        }
        Kind::Globs(_) => {
            let name = |u: &mut Unstructured<'_>| u.pick(&["gpu_*", "gpu_u?", "[a-z]*", "[", "a**", "gpu up", "*", ""]);
            (0..1 + u.below(3)).map(|_| name(u)).collect::<Vec<_>>().join(",")
        }
        Kind::PodLabels(_) => {
            let key = |u: &mut Unstructured<'_>| u.pick(&["team", "a.example/team", "Team", "a/b/c", "-a", "*", ""]);
            (0..1 + u.below(12)).map(|_| key(u)).collect::<Vec<_>>().join(",")
        }
        Kind::Hosts(_) => {
            let host = |u: &mut Unstructured<'_>| {
                u.pick(&["gpu-1", "a.EXAMPLE", "::1", "[::1]", "127.0.0.1", "a:9836", "*", ""])
            };
            (0..1 + u.below(3)).map(|_| host(u)).collect::<Vec<_>>().join(",")
        }
        Kind::UrlPath(_) => format!("/{}", u.text(8)),
        Kind::Path(..) | Kind::Folder(_) => format!("/a/{}", u.text(12)),
        Kind::Duration(..) => {
            let unit = u.pick(&["ns", "us", "ms", "s", "m", "h", "days", "month", "y", "", " s"]);
            format!("{}{unit}", u.number() >> u.below(64))
        }
        Kind::Hertz(..) if u.once_in(2) => f64::from_bits(u.number()).to_string(),
        Kind::Hertz(..) | Kind::Count(..) => (u.number() >> u.below(64)).to_string(),
        Kind::Switch(_) => u.pick(&["true", "false", "yes", "1"]).to_owned(),
        Kind::Choice(words) => u.pick(words).0.to_owned(),
        Kind::LogFilter(_) => {
            u.pick(&["info", "WARN", "a=debug", "info,a::b=trace", "[x{y=z}]=info", "a=b"]).to_owned()
        }
        Kind::Mode(_) => u.pick(&["0666", "660", "0", "777", "1777", "0o600", "-1", "08"]).to_owned(),
        Kind::Group(_) => u.pick(&["gpu", "44", "a b", "-a", "DOM\\\\users", "a.b_c@d"]).to_owned(),
        Kind::NodeName(_) => u.pick(&["gpu-1", "a.b", "-a", "A"]).to_owned(),
        Kind::OtlpEndpoint(_) => {
            u.pick(&["http://a:4318", "HTTPS://a/otlp", "a:4318", "http://a@b", "http://a/?k=v"]).to_owned()
        }
        Kind::ApiServer(_) => {
            u.pick(&["in-cluster", "https://a:1", "http://[::1]", "http://a", "https://a/b"]).to_owned()
        }
    }
}

/// A value as TOML or YAML writes it: text is quoted, in one of several ways.
fn written(u: &mut Unstructured<'_>, key: &Key) -> String {
    let value = value(u, key);
    let bare = matches!(key.kind, Kind::Hertz(..) | Kind::Count(..) | Kind::Switch(_));
    match u.below(8) {
        0 => value,
        1 => format!("'{value}'"),
        2 => format!("[{:?}, {value:?}]", value),
        3 => format!("{{ a = {value:?} }}"),
        _ if bare => value,
        _ => format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\"")),
    }
}

fn toml(u: &mut Unstructured<'_>) -> Vec<u8> {
    let mut text = String::new();
    let mut section = "";
    for _ in 0..u.below(10) {
        let key = key(u);
        let (own, leaf) = key.parts();
        let written = written(u, key);
        match u.below(6) {
            0 => text += &format!("{} = {written}\n", key.name),
            1 => text += &format!("\"{}\" = {written}\n", key.name),
            2 => text += &format!("[{}]\n{} = {written}\n", u.text(6), u.text(6)),
            _ if section == own => text += &format!("{leaf} = {written}\n"),
            _ => text += &format!("[{own}]\n{leaf} = {written}\n"),
        }
        section = own;
    }
    text.into_bytes()
}

fn yaml(u: &mut Unstructured<'_>) -> Vec<u8> {
    let mut text = u.pick(&["", "---\n", "%YAML 1.2\n---\n", "\u{feff}", "# a\r\n"]).to_owned();
    for (section, _) in SECTIONS {
        if !u.once_in(3) {
            continue;
        }
        text += &match u.below(6) {
            0 => format!("{section}:\n"),
            1 => format!("{section}: {{}}\n"),
            2 => format!("? {section}\n:\n"),
            _ => format!("{section}:\n"),
        };
        for key in keys().filter(|key| key.parts().0 == *section) {
            if u.once_in(2) {
                let leaf = if u.once_in(10) { u.text(8) } else { key.parts().1.to_owned() };
                let indent = if u.once_in(20) { 1 + u.below(200) } else { 2 };
                text += &format!("{}{leaf}: {}\n", " ".repeat(indent), written(u, key));
            }
        }
    }
    text.into_bytes()
}

fn argument(u: &mut Unstructured<'_>) -> Vec<u8> {
    let key = key(u);
    let text = match u.below(10) {
        0 => return without_zero(u.up_to(40)),
        1 => format!("--{}", key.name),
        2 => value(u, key),
        3 => u.pick(&["--once", "--check-config", "--print-config", "--demo", "--demo=x", "--", "-", "-h"]).to_owned(),
        4 => format!("--{}{}={}", key.name, u.text(3), value(u, key)),
        _ => format!("--{}={}", key.name, value(u, key)),
    };
    without_zero(text.as_bytes())
}

fn variable(u: &mut Unstructured<'_>) -> (Vec<u8>, Vec<u8>) {
    let key = key(u);
    let name = match u.below(8) {
        0 => format!("VRAM_EXPORTER_{}", u.text(20)),
        1 => format!("{}{}", key.variable(), u.pick(&["_PORT", "_SERVICE_HOST", "_PORT_1_TCP", "S", "_"])),
        _ => key.variable(),
    };
    let value = if u.once_in(8) { u.up_to(70).to_vec() } else { value(u, key).into_bytes() };
    (without_zero(name.as_bytes()), without_zero(&value))
}

/// Neither an argument nor a variable can contain a zero byte.
fn without_zero(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().copied().filter(|byte| *byte != 0).collect()
}
