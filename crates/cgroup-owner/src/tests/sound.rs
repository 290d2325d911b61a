//! What holds for every location, whatever text it was read from. The tests of this crate and the properties of the workspace
//! (`tests/properties`) both include this file.

use super::{Boundary, CgroupLocation};

/// The parts of a location have the right shapes and fit together.
pub(super) fn assert_sound(found: &CgroupLocation) {
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

    let hex = |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if let Some(uid) = pod_uid {
        let parts: Vec<_> = uid.split('-').map(str::len).collect();
        assert!(parts == [32] || parts == [8, 4, 4, 4, 12], "{found:?}");
        assert!(uid.split('-').all(hex), "{found:?}");
        // A pod's container has an id that its runtime assigned, not a chosen name.
        assert!(container_id.as_ref().is_none_or(|id| id.len() == 64 && hex(id)), "{found:?}");
    }
    let number = |text: &str| !text.is_empty() && text.len() <= 10 && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_job = |job: &str| number(job) || job.len() == 14 && job.starts_with('s');
    assert!(slurm_job.as_deref().is_none_or(is_job), "{found:?}");
    let is_step = |step: &str| matches!(step, "batch" | "extern" | "interactive") || step.split('+').all(number);
    assert!(slurm_step.as_deref().is_none_or(is_step), "{found:?}");
    let is_unit = |unit: &str| unit.rsplit_once('.').is_some_and(|(name, kind)| !name.is_empty() && kind != "slice");
    assert!(unit.as_deref().is_none_or(is_unit), "{found:?}");
}

/// The text without systemd's escapes, `\x2d` for a hyphen.
pub(super) fn unescaped(text: &[u8]) -> Vec<u8> {
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
