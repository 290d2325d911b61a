//! Texts that are cut off, altered, senseless or too long.

use super::{Row, container, expand, home, job, nowhere, pod, rows, unit, whole};
use crate::snapshot::{Boundary, Home};

/// Each id that is told stands in the text with nothing of a name before and behind it.
fn assert_whole(found: &Home, row: &Row) {
    let slices = |text: &String| text.replace('-', "_");
    let uids = found.pod_uid.iter().flat_map(|uid| [uid.clone(), slices(uid)]);
    let stands = |id: &String| {
        row.cgroup.match_indices(id.as_str()).any(|(at, _)| {
            let before = row.cgroup[..at].bytes().next_back();
            let after = row.cgroup[at + id.len()..].bytes().next();
            let is_pod = row.cgroup[..at].ends_with("pod");
            let open = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
            (is_pod || !open(before)) && !open(after)
        })
    };
    if found.pod_uid.is_some() {
        assert!(uids.into_iter().any(|uid| stands(&uid)), "{found:?} of {}", row.cgroup);
    }
    let others = [&found.container_id, &found.unit, &found.slurm_job, &found.slurm_step];
    for id in others.into_iter().flatten() {
        assert!(stands(id), "{id} of {}", row.cgroup);
    }
}

#[test]
fn a_cut_text_gives_no_part_of_an_id() {
    for row in rows() {
        for end in 0..row.cgroup.len() {
            assert_whole(&home(&row.cgroup.as_bytes()[..end], row.own.as_bytes()), &row);
        }
        for end in 0..row.own.len() {
            assert_whole(&home(row.cgroup.as_bytes(), &row.own.as_bytes()[..end]), &row);
        }
    }
}

#[test]
fn without_the_last_newline_only_what_cannot_be_a_part_counts() {
    let read = |text: &str| home(expand(text).as_bytes(), b"");
    assert_eq!(read("0::/docker/{A}"), container("{A}"));
    assert_eq!(read("0::/kubepods/pod{P}/{A}"), pod("{P}", "{A}"));
    assert_eq!(read("0::/system.slice/ollama.service"), unit("ollama.service"));
    assert_eq!(read("0::/system.slice/slurmstepd.scope/job_4"), unit("slurmstepd.scope"));
    assert_eq!(read("0::/system.slice/slurmstepd.scope/job_42/step_1"), job("42"));
    assert_eq!(read("0::/lxc.payload.build-1"), nowhere());
    assert_eq!(read("0::/default/worker-1"), nowhere());
    let deep = format!("0::{}/default/worker-1", "/..".repeat(62));
    assert_eq!(read(&deep), nowhere());
    assert_eq!(read(&(deep + "\n")), container("worker-1"));
}

#[test]
fn an_id_of_another_length_or_alphabet_is_none() {
    for id in [&"a".repeat(63), &"a".repeat(65), &"A".repeat(64), &"g".repeat(64)] {
        for shape in ["/docker/{}", "/system.slice/docker-{}.scope", "/kubepods/burstable/podx/{}", "/crio-{}"] {
            let text = format!("0::{}\n", shape.replace("{}", id));
            let found = home(text.as_bytes(), b"");
            assert_eq!(found.container_id, None, "{text}");
            assert_eq!(found.pod_uid, None, "{text}");
        }
    }
}

#[test]
fn only_lines_of_the_kernels_form_count() {
    for text in [
        "",
        "\n",
        "::",
        "0:",
        "0::",
        "0::\n",
        "x::/docker/{A}",
        ":memory:/docker/{A}",
        "0::docker/{A}",
        "/docker/{A}",
        "0:/docker/{A}",
        "4:blkio:/docker/{A}",
        "1:name=openrc:/docker/{A}",
        "-1::/docker/{A}",
    ] {
        assert_eq!(home(whole(text).as_bytes(), b""), nowhere(), "{text}");
    }
}

/// Numbers that look random and are the same each time.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize
    }
}

/// What every answer must be, whatever was read.
fn assert_sound(found: &Home) {
    let texts = [&found.container_id, &found.pod_uid, &found.unit, &found.slurm_job, &found.slurm_step];
    for text in texts.into_iter().flatten() {
        assert!(!text.is_empty() && text.len() <= 255 && text.bytes().all(|byte| byte.is_ascii_graphic()), "{found:?}");
    }
    assert_eq!(found.boundary == Some(Boundary::Pod), found.pod_uid.is_some(), "{found:?}");
    assert_eq!(found.boundary == Some(Boundary::SlurmJob), found.slurm_job.is_some(), "{found:?}");
    assert!(found.boundary.is_some() || *found == Home::default(), "{found:?}");
    assert!(found.boundary != Some(Boundary::Container) || found.container_id.is_some(), "{found:?}");
    let has_unit = matches!(found.boundary, Some(Boundary::Unit | Boundary::User));
    assert!(found.unit.is_none() || has_unit, "{found:?}");
}

#[test]
fn any_bytes_are_read_without_harm() {
    let mut numbers = Numbers(1);
    let rows = rows();
    let telling = b"/:\n.-_@\\0123456789abcdefpod\xff\0";
    for round in 0..20_000 {
        let row = &rows[numbers.next() % rows.len()];
        let mut text = row.cgroup.clone().into_bytes();
        if round % 4 == 0 {
            text = (0..numbers.next() % 300).map(|_| numbers.next() as u8).collect();
        }
        for _ in 0..numbers.next() % 8 {
            let at = numbers.next() % (text.len() + 1);
            let byte = telling[numbers.next() % telling.len()];
            match text.get_mut(at) {
                Some(there) if numbers.next() & 1 == 0 => *there = byte,
                _ => text.insert(at, byte),
            }
        }
        assert_sound(&home(&text, row.own.as_bytes()));
        assert_sound(&home(row.cgroup.as_bytes(), &text));
        assert_sound(&home(&text, &text));
    }
}

#[test]
fn long_texts_are_read_without_harm() {
    let long = |part: &str| part.repeat(64 * 1024 / part.len()).into_bytes();
    let path = [b"0::".as_slice(), &long("/a")].concat();
    assert_eq!(home(&path, &path), nowhere());
    let nested = [b"0::".as_slice(), &long(&expand("/docker/{A}")), b"\n"].concat();
    assert_eq!(home(&nested, b""), container("{A}"));
    assert_sound(&home(&nested, &nested));
    for part in ["0::/a\n", ":", "/", "\n", "0::/..", "9:memory:/user.slice\n", "0::/lxc"] {
        assert_eq!(home(&long(part), &long(part)), nowhere(), "{part}");
    }
    let lxc = format!("0::/lxc/{}\n", "n".repeat(64 * 1024));
    assert_eq!(home(lxc.as_bytes(), b""), nowhere());
    let unit = format!("0::/system.slice/{}.service\n", "n".repeat(64 * 1024));
    assert_eq!(home(unit.as_bytes(), b""), nowhere());
}
