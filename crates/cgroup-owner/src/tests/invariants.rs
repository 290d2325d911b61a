//! What holds for every location, as far as its text tells.

use super::CgroupLocation;
use super::sound::{assert_sound, unescaped};

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
