//! Any passwd file: the first line for a user counts, and a line names at most one user.

use std::collections::HashMap;

use gpu_readings::attribution::parse_passwd;

use crate::choices::{Choose, Unstructured, choices};

/// Parses a passwd file. True if it names a user.
pub fn passwd(data: &[u8]) -> bool {
    let names = match choices(data) {
        Some(mut u) => {
            let (text, expected) = arbitrary(&mut u);
            let names = parse_passwd(&text);
            assert_eq!(names, expected, "{}", text.escape_ascii());
            names
        }
        None => parse_passwd(data),
    };
    let lines = data.split(|byte| *byte == b'\n').count();
    assert!(choices(data).is_some() || names.len() <= lines, "more names than lines");
    for name in names.values() {
        assert!(!name.is_empty() && !name.contains([':', '\n']) && !name.starts_with('#'), "{name:?}");
    }
    !names.is_empty()
}

/// A file, and the users that it names.
fn arbitrary(u: &mut Unstructured<'_>) -> (Vec<u8>, HashMap<u32, String>) {
    let (mut text, mut names) = (Vec::new(), HashMap::new());
    while !u.is_empty() {
        let name: Vec<u8> = u.up_to(20).iter().copied().filter(|byte| !b":\n".contains(byte)).collect();
        let uid = if u.once_in(2) { u.number() } else { u64::from(u.byte()) };
        // The password and the fields after the uid have no meaning here.
        let rest = u.up_to(20).iter().map(|byte| if *byte == b'\n' { b':' } else { *byte });
        let password = u.pick(&["x", "", "*", "0"]);
        text.extend_from_slice(&[&name, b":".as_slice(), password.as_bytes(), b":"].concat());
        text.extend_from_slice(uid.to_string().as_bytes());
        if u.once_in(4) {
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
