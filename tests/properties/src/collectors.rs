//! Any list of dcgm-exporter's fields: it is taken whole, or refused with a line and a reason that is safe to print.

use std::collections::BTreeSet;

use vram_exporter::dcgm::{parse, served};

use crate::choices::{Choose, Unstructured, choices};

/// Parses a list. True if it is accepted and serves a field.
pub fn collectors(data: &[u8]) -> bool {
    let generated = choices(data).map(|mut u| arbitrary(&mut u));
    let text = generated.as_ref().map_or(data, |(text, _)| text);
    let lines = text.split(|byte| *byte == b'\n').count();
    match parse(text) {
        Ok(list) => {
            let fields = list.len() + list.unserved().count() + list.repeated().len();
            assert!(fields <= lines, "more fields than lines");
            assert!(list.repeated().iter().all(|again| again.first < again.line && again.line <= lines));
            let names: Vec<&str> = list.families().collect();
            for name in &names {
                assert!(served().any(|known| known == *name), "{name} is served and is no field");
            }
            let distinct: BTreeSet<_> = names.iter().collect();
            assert_eq!(distinct.len(), names.len(), "a name is served twice");
            if let Some((text, expected)) = &generated {
                let families: Vec<_> =
                    expected.iter().filter(|(_, is_label)| !is_label).map(|(name, _)| *name).collect();
                assert_eq!((&names, list.len()), (&families, expected.len()), "{}", text.escape_ascii());
            }
            !list.is_empty()
        }
        Err(problem) => {
            assert!((1..=lines).contains(&problem.line), "{problem}");
            let said = problem.to_string();
            assert!(said.len() < 500 && !said.contains(char::is_control), "{said:?}");
            assert!(generated.is_none(), "a valid list is refused: {said}");
            false
        }
    }
}

/// A valid list, and the names that it serves, each with whether it is a label.
fn arbitrary(u: &mut Unstructured<'_>) -> (Vec<u8>, Vec<(&'static str, bool)>) {
    let (mut text, mut names) = (String::new(), Vec::new());
    let known: Vec<_> = served().collect();
    while !u.is_empty() {
        let name = u.pick(&known);
        let ends =
            ["DRIVER_VERSION", "NVML_VERSION", "VBIOS_VERSION", "NAME", "BRAND", "SERIAL", "UUID", "BUSID", "BUS_ID"];
        let is_label = ends.iter().any(|end| name.ends_with(end)) && name != "DCGM_FI_CUDA_DRIVER_VERSION";
        // The quotes and line ends of a free text are removed: a quote would have to be doubled.
        let help: String = u.text(20).chars().filter(|c| !['"', '\n'].contains(c)).collect();
        let space = u.pick(&["", " ", "   ", "\t"]);
        let end = u.pick(&["\n", "\r\n", "\n\n", "\n# a, b, c, d\n"]);
        let kind = if is_label { "label" } else { u.pick(&["gauge", "counter"]) };
        text.push_str(&format!("{space}{name}{space},{space}{kind}{space},{space}\"{help}\"{space}{end}"));
        if names.iter().all(|(known, _)| *known != name) {
            names.push((name, is_label));
        }
    }
    (text.into_bytes(), names)
}
