//! What holds for every location, whatever text it was read from.

use crate::{Boundary, CgroupLocation};

/// The parts of a location have the right shapes and fit together.
fn assert_sound(found: &CgroupLocation) {
    let CgroupLocation { boundary, user, container_id, pod_uid, unit, slurm_job, slurm_step, job } = found;
    let job_id = job.as_ref().map(|job| job.id.clone());
    for text in [container_id, pod_uid, unit, slurm_job, slurm_step, &job_id].into_iter().flatten() {
        assert!(!text.is_empty() && text.len() <= 255 && text.bytes().all(|byte| byte.is_ascii_graphic()), "{found:?}");
        assert!(!text.contains('/'), "{found:?}");
    }
    assert_eq!(*boundary == Some(Boundary::Pod), pod_uid.is_some(), "{found:?}");
    assert_eq!(*boundary == Some(Boundary::SlurmJob), slurm_job.is_some(), "{found:?}");
    assert_eq!(*boundary == Some(Boundary::Job), job.is_some(), "{found:?}");
    assert!(boundary.is_some() || *found == CgroupLocation::default(), "{found:?}");
    assert!(*boundary != Some(Boundary::Container) || container_id.is_some(), "{found:?}");
    assert!(unit.is_none() || matches!(boundary, Some(Boundary::Unit | Boundary::User)), "{found:?}");
    assert!(user.is_none() || *boundary == Some(Boundary::User), "{found:?}");
    assert!(slurm_step.is_none() || slurm_job.is_some(), "{found:?}");
}

/// The location is sound, and each id is in the text, with no letter or digit directly before or after it.
pub(super) fn assert_complete_ids(found: &CgroupLocation, text: &[u8]) {
    assert_sound(found);
    let text = unescaped(text);
    let is_complete = |id: &str| {
        text.windows(id.len()).enumerate().any(|(at, window)| {
            let (before, behind) = (&text[..at], &text[at + id.len()..]);
            let open = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
            // A pod's uid follows `pod`, and the number of an OAR job follows `-j`.
            let is_marked = before.ends_with(b"pod") || before.ends_with(b"-j");
            window == id.as_bytes() && (is_marked || !open(before.last())) && !open(behind.first())
        })
    };
    let job = found.job.as_ref().map(|job| job.id.clone());
    // A unit is returned as systemd writes it.
    let unit = found.unit.as_deref().map(|unit| String::from_utf8(unescaped(unit.as_bytes())).unwrap());
    let others = [&found.container_id, &unit, &found.slurm_job, &found.slurm_step, &job];
    for id in others.into_iter().flatten() {
        assert!(is_complete(id), "{id} is not in the text: {}", text.escape_ascii());
    }
    if let Some(uid) = &found.pod_uid {
        let found = is_complete(uid) || is_complete(&uid.replace('-', "_"));
        assert!(found, "{uid} is not in the text: {}", text.escape_ascii());
    }
}

/// The text without systemd's escapes, `\x2d` for a hyphen.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    let mut rest = text;
    while let Some((&byte, behind)) = rest.split_first() {
        let escaped = rest.strip_prefix(br"\x").and_then(|hex| std::str::from_utf8(hex.get(..2)?).ok());
        match escaped.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                plain.push(byte);
                rest = &rest[4..];
            }
            None => {
                plain.push(byte);
                rest = behind;
            }
        }
    }
    plain
}
