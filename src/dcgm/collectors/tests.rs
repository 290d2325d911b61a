//! Valid and hostile lists.

use super::*;

fn names(text: &str) -> Vec<String> {
    parse(text.as_bytes()).unwrap().columns.into_iter().map(|column| column.name).collect()
}

fn refused(text: impl AsRef<[u8]>) -> String {
    parse(text.as_ref()).unwrap_err().to_string()
}

#[test]
fn a_list_has_comments_spaces_quotes_and_any_line_end() {
    let text = "\u{feff}# a comment, with a comma\r\n\r\nDCGM_FI_DEV_DEC_UTIL , gauge, Decoder.\r\n  # indented\n\
                DCGM_FI_DEV_GPU_TEMP,gauge,\"Hot, or \"\"cold\"\"\"\nDCGM_FI_DRIVER_VERSION, label, Version\n";
    let list = parse(text.as_bytes()).unwrap();
    assert_eq!(names(text), ["DCGM_FI_DEV_DEC_UTIL", "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DRIVER_VERSION"]);
    assert_eq!(list.columns[1].help, "Hot, or \"cold\"");
    let kinds: Vec<_> = list.columns.iter().map(|column| column.kind).collect();
    assert_eq!(kinds, [Some(Kind::Gauge), Some(Kind::Gauge), None]);
    assert_eq!(list.unserved().count(), 0);
    assert!(parse(b"").unwrap().is_empty());
    assert!(parse(b"DCGM_FI_DRIVER_VERSION, label, Text\n").unwrap().is_empty(), "a label needs a family");
}

#[test]
fn old_and_new_names_are_accepted_and_stay_as_they_are_written() {
    let text = "DCGM_FI_DEV_GPU_TEMP_CELSIUS, gauge, New\nDCGM_FI_DEV_GPU_TEMP, gauge, Old\n";
    assert_eq!(names(text), ["DCGM_FI_DEV_GPU_TEMP_CELSIUS", "DCGM_FI_DEV_GPU_TEMP"]);
}

#[test]
fn of_the_lines_with_the_same_name_the_first_one_counts() {
    let text = "DCGM_FI_DEV_FB_USED, gauge, First\n\nDCGM_FI_DEV_GPU_TEMP, gauge, Hot\nDCGM_FI_DEV_FB_USED, counter, Again\n\
                DCGM_EXP_P2P_STATUS, gauge, Link\nDCGM_EXP_P2P_STATUS, gauge, Link\n";
    let list = parse(text.as_bytes()).unwrap();
    assert_eq!(names(text), ["DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_GPU_TEMP"]);
    assert_eq!((&*list.columns[0].help, list.columns[0].kind), ("First", Some(Kind::Gauge)));
    assert_eq!(list.unserved().count(), 1);
    let repeated: Vec<_> = list.repeated().iter().map(|again| (&*again.name, again.first, again.line)).collect();
    assert_eq!(repeated, [("DCGM_FI_DEV_FB_USED", 1, 4), ("DCGM_EXP_P2P_STATUS", 5, 6)]);
}

#[test]
fn the_names_of_1x_are_those_of_the_same_fields() {
    let text = "dcgm_fb_used, gauge, Used\ndcgm_fi_prof_dram_active, gauge, Share\ndcgm_nonsense, gauge, None\n";
    let list = parse(text.as_bytes()).unwrap();
    let fields: Vec<_> = list.columns.iter().map(|column| (column.name.as_str(), column.field.name)).collect();
    let expected = [("dcgm_fb_used", "DCGM_FI_DEV_FB_USED"), ("dcgm_fi_prof_dram_active", "DCGM_FI_PROF_DRAM_ACTIVE")];
    assert_eq!(fields, expected);
    assert_eq!(list.unserved().map(|(name, _)| name).collect::<Vec<_>>(), ["dcgm_nonsense"]);
}

#[test]
fn what_cannot_be_served_is_named_with_the_reason() {
    let text = "DCGM_FI_DEV_VGPU_LICENSE_STATUS, gauge, License\nDCGM_FI_DEV_GPU_TEMP, label, Number\n\
                DCGM_FI_DRIVER_VERSION, gauge, Text\nDCGM_EXP_XID_ERRORS_COUNT, gauge, Own\nDCGM_FI_DEV_FB_USED, gauge, Served\n";
    let list = parse(text.as_bytes()).unwrap();
    let unserved: Vec<_> = list.unserved().collect();
    assert_eq!(unserved.len(), 4);
    assert_eq!(unserved[1], ("DCGM_FI_DEV_GPU_TEMP", "it is a number that changes; its type must be gauge or counter"));
    assert_eq!(unserved[2], ("DCGM_FI_DRIVER_VERSION", "it is text; its type must be label"));
    assert!(
        unserved[0].1.contains("virtual GPUs") && unserved[3].1.contains("DCGM_EXP_XID_ERRORS_TOTAL"),
        "{unserved:?}"
    );
    let unknown = parse(b"DCGM_FI_DEV_NONSENSE, gauge, None\n").unwrap();
    assert_eq!(unknown.unserved().next(), Some(("DCGM_FI_DEV_NONSENSE", "no field of DCGM is known by this name")));
    assert_eq!(list.len(), 1);
}

#[test]
fn an_invalid_line_is_refused_with_its_number() {
    let good = "DCGM_FI_DEV_FB_USED, gauge, Used\n";
    for (bad, why) in [
        ("DCGM_FI_DEV_FB_FREE, gauge", "2 parts instead of 3"),
        ("DCGM_FI_DEV_FB_FREE, gauge, a, b", "4 parts instead of 3"),
        ("DCGM_FI_DEV_FB_FREE, histogram, Free", "\"histogram\" is not a type"),
        ("DCGM_FI_DEV_FB_FREE, GAUGE, Free", "\"GAUGE\" is not a type"),
        ("fb_free, gauge, Free", "\"fb_free\" is not the name of a DCGM field"),
        ("DCGM_FI{a=\"1\"} 1, gauge, Free", "is not the name of a DCGM field"),
        ("DCGM_FI_DEV_FB_FREE, gauge, \"Free", "a quote that is not closed"),
        ("DCGM_FI_DEV_FB_FREE, gauge, \"Free\" b", "text after a closing quote"),
        ("dcgm_FB_FREE, gauge, Free", "\"dcgm_FB_FREE\" is not the name of a DCGM field"),
        ("Dcgm_fb_free, gauge, Free", "is not the name of a DCGM field"),
    ] {
        let error = refused(format!("{good}{bad}\n{good}"));
        assert!(error.starts_with("line 2: ") && error.contains(why), "{bad}: {error}");
    }
    assert_eq!(refused(b"# a\n\xff, gauge, b"), "line 2: is not UTF-8 text");
}

#[test]
fn an_error_never_repeats_a_hostile_line() {
    let error = refused(format!("DCGM_\u{1b}[31m{}, gauge, x", "A".repeat(100_000)));
    assert!(error.len() < 200 && !error.contains('\u{1b}'), "{error}");
}

#[test]
fn only_a_file_of_bounded_length_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let error = |path: &Path| Collectors::from_file(path).unwrap_err().to_string();
    let missing = folder.path().join("missing.csv");
    assert!(error(&missing).contains("missing.csv cannot be read"), "{}", error(&missing));
    assert!(error(folder.path()).contains("it is not a regular file"));
    assert!(error(Path::new("/dev/zero")).contains("it is not a regular file"));
    let long = folder.path().join("long.csv");
    std::fs::write(&long, vec![b'#'; LONGEST_FILE as usize + 1]).unwrap();
    assert!(error(&long).contains("longer than 1048576 bytes"));
    let bad = folder.path().join("bad.csv");
    std::fs::write(&bad, "DCGM_FI_DEV_FB_FREE\n").unwrap();
    let said = error(&bad);
    assert!(said.starts_with("dcgm.collectors-file: ") && said.contains("bad.csv, line 1: "), "{said}");
}

#[test]
fn the_default_list_has_one_label_and_a_help_for_each_family() {
    let list = Collectors::by_default(DcgmNames::Exporter48);
    assert_eq!(list.columns.iter().filter(|column| column.kind.is_none()).count(), 1);
    assert!(list.columns.iter().all(|column| column.kind.is_none() || !column.help.is_empty()));
}
