//! The page for people, of the real binary on a simulated machine.

#![allow(clippy::unwrap_used, clippy::panic, reason = "what fails in a test fails the test")]

mod harness;

use harness::{Exporter, Machine};

const TWO: &str = r#"
seed = 1
[[gpu]]
model = "H200"
[[process]]
pid = 4242
gpu = 0
cgroup = "0::/system.slice/serve.service"
command = ["/usr/bin/python3", "/srv/serve.py"]
memory = "20GiB"
"#;

#[test]
fn the_page_says_that_the_driver_is_being_opened() {
    let machine = Machine::new(TWO);
    machine.control("[[fault]]\ncall = \"nvmlInit_v2\"\nkind = \"hang\"\n");
    let exporter = Exporter::start(machine.command(&[]));
    let page = exporter.get("/").unwrap().body;
    assert!(page.contains("Starting: the driver is being opened."), "{page}");
    assert!(exporter.terminate().success());
}
