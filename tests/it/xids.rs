//! The table of Xid codes in the program and the pages that list the codes agree.

use std::collections::BTreeSet;
use std::path::Path;

use vram_exporter::snapshot::XIDS;

fn page(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

#[test]
fn the_page_about_the_recorder_lists_the_codes_that_concern_memory() {
    let groups = XIDS.iter().filter(|group| group.concerns_memory);
    let all: BTreeSet<u64> = groups.flat_map(|group| group.codes).copied().collect();
    let all: Vec<_> = all.iter().map(u64::to_string).collect();
    let (last, others) = all.split_last().unwrap();
    let listed =
        format!("| `memory_xid` | the driver reported an Xid that concerns memory: {} or {last} |", others.join(", "));
    assert!(page("docs/recorder.md").contains(&listed), "docs/recorder.md lacks: {listed}");
}
