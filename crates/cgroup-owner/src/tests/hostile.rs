//! Input that is cut off, altered, meaningless or too long.

use super::invariants::assert_complete_ids;
use super::{at, expand, locate, rows, whole};

#[test]
fn a_cut_text_gives_no_part_of_an_id() {
    for row in rows() {
        for end in 0..row.cgroup.len() {
            assert_complete_ids(&locate(&row.cgroup.as_bytes()[..end], row.own.as_bytes()), row.cgroup.as_bytes());
        }
        for end in 0..row.own.len() {
            assert_complete_ids(&locate(row.cgroup.as_bytes(), &row.own.as_bytes()[..end]), row.cgroup.as_bytes());
        }
    }
}

#[test]
fn without_the_last_newline_only_what_cannot_be_a_part_counts() {
    let read = |text: &str| locate(expand(text).as_bytes(), b"");
    assert_eq!(read("0::/docker/{A}"), at("Container container={A}"));
    assert_eq!(read("0::/kubepods/pod{P}/{A}"), at("Pod pod={P} container={A}"));
    assert_eq!(read("0::/system.slice/ollama.service"), at("Unit unit=ollama.service"));
    assert_eq!(read("0::/system.slice/slurmstepd.scope/job_4"), at("Unit unit=slurmstepd.scope"));
    assert_eq!(read("0::/system.slice/slurmstepd.scope/job_42/step_1"), at("SlurmJob job=42"));
    assert_eq!(read("0::/lxc.payload.build-1"), at("nowhere"));
    assert_eq!(read("0::/default/worker-1"), at("nowhere"));
    let deep = format!("0::{}/default/worker-1", "/..".repeat(62));
    assert_eq!(read(&deep), at("nowhere"));
    assert_eq!(read(&(deep + "\n")), at("Container container=worker-1"));
}

#[test]
fn an_id_of_another_length_or_alphabet_is_none() {
    for id in [&"a".repeat(63), &"a".repeat(65), &"A".repeat(64), &"g".repeat(64)] {
        for shape in ["/docker/{}", "/system.slice/docker-{}.scope", "/kubepods/burstable/podx/{}", "/crio-{}"] {
            let text = format!("0::{}\n", shape.replace("{}", id));
            let found = locate(text.as_bytes(), b"");
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
        assert_eq!(locate(whole(text).as_bytes(), b""), at("nowhere"), "{text}");
    }
}

#[test]
fn long_texts_are_read_without_harm() {
    let long = |part: &str| part.repeat(64 * 1024 / part.len()).into_bytes();
    let path = [b"0::".as_slice(), &long("/a")].concat();
    assert_eq!(locate(&path, &path), at("nowhere"));
    let nested = [b"0::".as_slice(), &long(&expand("/docker/{A}")), b"\n"].concat();
    assert_eq!(locate(&nested, b""), at("Container container={A}"));
    assert_eq!(locate(&nested, &nested), at("Container container={A}"));
    for part in ["0::/a\n", ":", "/", "\n", "0::/..", "9:memory:/user.slice\n", "0::/lxc"] {
        assert_eq!(locate(&long(part), &long(part)), at("nowhere"), "{part}");
    }
    let lxc = format!("0::/lxc/{}\n", "n".repeat(64 * 1024));
    assert_eq!(locate(lxc.as_bytes(), b""), at("nowhere"));
    let unit = format!("0::/system.slice/{}.service\n", "n".repeat(64 * 1024));
    assert_eq!(locate(unit.as_bytes(), b""), at("nowhere"));
}
