//! The completion scripts and the manual pages of `vram`.

use std::path::Path;

use generated_files::{Program, assert_all_committed};

/// The meanings of the exit statuses.
const STATUSES: [(&str, &str); 4] = [
    ("0", "The table or the JSON was printed."),
    ("1", "The GPUs could not be read, or the output could not be written."),
    ("2", "There is no driver."),
    ("64", "The command line, the environment or the configuration file of the exporter is wrong."),
];

fn vram() -> Program {
    let words = |flag: &str| if flag == "demo" { nvml_sim::scenarios().collect() } else { Vec::new() };
    let pages = &["run", "report", "leaks", "advise"];
    let see_also = &["vram-exporter"];
    Program { name: "vram", description: vram::description(), words, pages, statuses: &STATUSES, see_also }
}

#[test]
fn the_generated_files_are_fresh() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    assert_all_committed(&package.join("src/completions"), &vram().completions());
    assert_all_committed(&package.join("../../docs/man"), &vram().manual());
}
