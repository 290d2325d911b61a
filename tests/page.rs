//! The page for people, of the real binary on a simulated machine.

#![allow(clippy::unwrap_used, clippy::panic, reason = "what fails in a test fails the test")]

mod harness;

use harness::{Exporter, Machine, eventually};

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
fn the_peak_stays_with_who_reached_it_after_its_end() {
    let machine = Machine::new(TWO);
    let exporter = machine.export(&[]);
    let page = || exporter.get("/").unwrap().body;
    machine.control(
        r#"
        [[process]]
        pid = 777
        gpu = 0
        cgroup = "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0"
        command = ["/usr/bin/python3", "/home/bob/train.py"]
        memory = "78GiB"
        "#,
    );
    let living = eventually("both are shown", || {
        Some(page()).filter(|page| page.contains("train.py <span class=\"soft\">777 of slurm:7</span></li>"))
    });
    assert!(living.contains("<li>78.5 GiB train.py"), "{living}");
    machine.control("");
    let gone = "<li class=\"soft\">peak 78.5 GiB train.py <span class=\"soft\">777 of slurm:7</span>, ended ";
    let ended = eventually("the end is shown", || Some(page()).filter(|page| page.contains(gone)));
    assert!(
        ended.contains("<li>20.5 GiB serve.py <span class=\"soft\">4242 of unit:serve.service</span></li>"),
        "{ended}"
    );
    assert!(ended.split(gone).nth(1).unwrap().split("</li>").next().unwrap().ends_with(" ago"), "{ended}");
    assert!(exporter.terminate().success());
}

#[test]
fn the_page_says_that_the_driver_is_being_opened() {
    let machine = Machine::new(TWO);
    machine.control("[[fault]]\ncall = \"nvmlInit_v2\"\nkind = \"hang\"\n");
    let exporter = Exporter::start(machine.command(&[]));
    let page = exporter.get("/").unwrap().body;
    assert!(page.contains("Starting: the driver is being opened."), "{page}");
    assert!(exporter.terminate().success());
}
