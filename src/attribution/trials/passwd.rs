//! Files of users: the first line of a user counts, and no line can give two of them a name.

use std::collections::HashMap;

use crate::attribution::users::passwd::parse;
use crate::trials::Pieces;

/// Reads a passwd file. True where it names somebody.
pub fn passwd(data: &[u8]) -> bool {
    let names = match Pieces::of(data) {
        Some(mut pieces) => {
            let (text, expected) = made(&mut pieces);
            let names = parse(&text);
            assert_eq!(names, expected, "{}", text.escape_ascii());
            names
        }
        None => parse(data),
    };
    let lines = data.split(|byte| *byte == b'\n').count();
    assert!(Pieces::of(data).is_some() || names.len() <= lines, "more names than lines");
    for name in names.values() {
        assert!(!name.is_empty() && !name.contains([':', '\n']) && !name.starts_with('#'), "{name:?}");
    }
    !names.is_empty()
}

/// A file, and whom it names.
fn made(pieces: &mut Pieces<'_>) -> (Vec<u8>, HashMap<u32, String>) {
    let (mut text, mut names) = (Vec::new(), HashMap::new());
    while !pieces.is_empty() {
        let name: Vec<u8> = pieces.bytes(20).iter().copied().filter(|byte| !b":\n".contains(byte)).collect();
        let uid = if pieces.once_in(2) { pieces.number() } else { u64::from(pieces.byte()) };
        // What stands behind the uid means nothing, nor does the password.
        let rest = pieces.bytes(20).iter().map(|byte| if *byte == b'\n' { b':' } else { *byte });
        let password = pieces.pick(&["x", "", "*", "0"]);
        text.extend_from_slice(&[&name, b":".as_slice(), password.as_bytes(), b":"].concat());
        text.extend_from_slice(uid.to_string().as_bytes());
        if pieces.once_in(4) {
            text.push(b'\n');
        } else {
            text.push(b':');
            text.extend(rest);
            text.push(b'\n');
        }
        if let (Ok(uid), false) = (u32::try_from(uid), name.is_empty() || name.starts_with(b"#")) {
            names.entry(uid).or_insert_with(|| String::from_utf8_lossy(&name).into_owned());
        }
    }
    (text, names)
}
