//! Configurations made of the table of keys: most of a file is right, so that what is wrong with it is looked at.

use super::Given;
use crate::config::keys::{KEYS, Key, SECTIONS};
use crate::config::setting::Kind;
use crate::trials::Pieces;

/// Texts that mean something to a parser of TOML, YAML, addresses, durations or filters.
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

pub(super) fn given(pieces: &mut Pieces<'_>) -> Given {
    let mut given = Given::default();
    match pieces.below(4) {
        0 => given.file = Some(("toml", toml(pieces))),
        1 => given.file = Some(("yml", yaml(pieces))),
        2 => given.arguments = (0..pieces.below(8)).map(|_| argument(pieces)).collect(),
        _ => given.variables = (0..pieces.below(8)).map(|_| variable(pieces)).collect(),
    }
    if pieces.once_in(3) {
        given.arguments.push(argument(pieces));
        given.variables.push(variable(pieces));
    }
    given
}

fn key(pieces: &mut Pieces<'_>) -> &'static Key {
    &KEYS[pieces.below(KEYS.len())]
}

/// A value as text: mostly of the kind that the key asks for.
fn value(pieces: &mut Pieces<'_>, key: &Key) -> String {
    match pieces.below(8) {
        0 => return pieces.pick(&MEANING).to_owned(),
        1 => return pieces.text(70),
        _ => {}
    }
    match key.kind {
        Kind::Addresses => {
            let address = |pieces: &mut Pieces<'_>| match pieces.below(4) {
                0 => format!("[fe80::{:x}%{}]:{}", pieces.byte(), pieces.byte(), pieces.byte()),
                1 => format!("127.0.0.{}:{}", pieces.byte(), pieces.number()),
                2 => format!("[::{}]:{}", pieces.byte(), pieces.byte()),
                _ => format!(":{}", pieces.number() % 70_000),
            };
            (0..1 + pieces.below(3)).map(|_| address(pieces)).collect::<Vec<_>>().join(",")
        }
        Kind::UrlPath => format!("/{}", pieces.text(8)),
        Kind::Path => format!("/a/{}", pieces.text(12)),
        Kind::Duration { .. } => {
            let unit = pieces.pick(&["ns", "us", "ms", "s", "m", "h", "days", "month", "y", "", " s"]);
            format!("{}{unit}", pieces.number() >> pieces.below(64))
        }
        Kind::Number { .. } if pieces.once_in(2) => f64::from_bits(pieces.number()).to_string(),
        Kind::Number { .. } | Kind::Count { .. } => (pieces.number() >> pieces.below(64)).to_string(),
        Kind::Switch => pieces.pick(&["true", "false", "yes", "1"]).to_owned(),
        Kind::Choice(words) => pieces.pick(words).to_owned(),
        Kind::LogFilter => {
            pieces.pick(&["info", "WARN", "a=debug", "info,a::b=trace", "[x{y=z}]=info", "a=b"]).to_owned()
        }
        Kind::NodeName => pieces.pick(&["gpu-1", "a.b", "-a", "A"]).to_owned(),
        Kind::ApiServer => {
            pieces.pick(&["in-cluster", "https://a:1", "http://[::1]", "http://a", "https://a/b"]).to_owned()
        }
    }
}

/// A value as a file of either form writes it: quoted where it is text, in one of the ways there are.
fn written(pieces: &mut Pieces<'_>, key: &Key) -> String {
    let value = value(pieces, key);
    let bare = matches!(key.kind, Kind::Number { .. } | Kind::Count { .. } | Kind::Switch);
    match pieces.below(8) {
        0 => value,
        1 => format!("'{value}'"),
        2 => format!("[{:?}, {value:?}]", value),
        3 => format!("{{ a = {value:?} }}"),
        _ if bare => value,
        _ => format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\"")),
    }
}

fn toml(pieces: &mut Pieces<'_>) -> Vec<u8> {
    let mut text = String::new();
    let mut section = "";
    for _ in 0..pieces.below(10) {
        let key = key(pieces);
        let (own, leaf) = key.parts();
        let written = written(pieces, key);
        match pieces.below(6) {
            0 => text += &format!("{} = {written}\n", key.name),
            1 => text += &format!("\"{}\" = {written}\n", key.name),
            2 => text += &format!("[{}]\n{} = {written}\n", pieces.text(6), pieces.text(6)),
            _ if section == own => text += &format!("{leaf} = {written}\n"),
            _ => text += &format!("[{own}]\n{leaf} = {written}\n"),
        }
        section = own;
    }
    text.into_bytes()
}

fn yaml(pieces: &mut Pieces<'_>) -> Vec<u8> {
    let mut text = pieces.pick(&["", "---\n", "%YAML 1.2\n---\n", "\u{feff}", "# a\r\n"]).to_owned();
    for (section, _) in SECTIONS {
        if !pieces.once_in(3) {
            continue;
        }
        text += &match pieces.below(6) {
            0 => format!("{section}:\n"),
            1 => format!("{section}: {{}}\n"),
            2 => format!("? {section}\n:\n"),
            _ => format!("{section}:\n"),
        };
        for key in KEYS.iter().filter(|key| key.parts().0 == *section) {
            if pieces.once_in(2) {
                let leaf = if pieces.once_in(10) { pieces.text(8) } else { key.parts().1.to_owned() };
                let indent = if pieces.once_in(20) { 1 + pieces.below(200) } else { 2 };
                text += &format!("{}{leaf}: {}\n", " ".repeat(indent), written(pieces, key));
            }
        }
    }
    text.into_bytes()
}

fn argument(pieces: &mut Pieces<'_>) -> Vec<u8> {
    let key = key(pieces);
    let text = match pieces.below(10) {
        0 => return without_zero(pieces.bytes(40)),
        1 => format!("--{}", key.name),
        2 => value(pieces, key),
        3 => pieces
            .pick(&["--once", "--check-config", "--print-config", "--demo", "--demo=x", "--", "-", "-h"])
            .to_owned(),
        4 => format!("--{}{}={}", key.name, pieces.text(3), value(pieces, key)),
        _ => format!("--{}={}", key.name, value(pieces, key)),
    };
    without_zero(text.as_bytes())
}

fn variable(pieces: &mut Pieces<'_>) -> (Vec<u8>, Vec<u8>) {
    let key = key(pieces);
    let name = match pieces.below(8) {
        0 => format!("VRAM_EXPORTER_{}", pieces.text(20)),
        1 => format!("{}{}", key.variable(), pieces.pick(&["_PORT", "_SERVICE_HOST", "_PORT_1_TCP", "S", "_"])),
        _ => key.variable(),
    };
    let value = if pieces.once_in(8) { pieces.bytes(70).to_vec() } else { value(pieces, key).into_bytes() };
    (without_zero(name.as_bytes()), without_zero(&value))
}

/// Neither an argument nor a variable can hold a zero byte.
fn without_zero(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().copied().filter(|byte| *byte != 0).collect()
}
