//! The simulated `/proc`, read by the procfs crate.

mod rig;

use rig::{Rig, unix_now};

fn read_all(test: &str, scenario: &str, least: usize) {
    Rig::alone(test, scenario, |rig| {
        let nvml = rig.nvml();
        nvml.device_by_index(0).unwrap().running_compute_processes().unwrap();
        let mut seen = 0;
        for process in procfs::process::all_processes_with_root(rig.procfs()).unwrap() {
            let process = process.unwrap();
            assert_eq!(process.stat().unwrap().pid, process.pid());
            // The crate reads `status` as UTF-8, but a name need not be UTF-8, in particular if the kernel has
            // truncated it.
            match process.status() {
                Ok(status) => assert_eq!(status.pid, process.pid()),
                Err(error) => assert!([6003, 6005].contains(&process.pid()), "{}: {error}", process.pid()),
            }
            seen += 1;
        }
        assert!(seen >= least, "{seen}");
    });
}

#[test]
fn the_demo_s_processes_are_read() {
    read_all("the_demo_s_processes_are_read", "demo", 5);
}

#[test]
fn hostile_processes_are_read() {
    read_all("hostile_processes_are_read", "hostile-names", 10);
}

#[test]
fn a_process_is_whom_and_when_the_scenario_says() {
    const ONE: &str = r#"
[[gpu]]
model = "L4"
[[process]]
pid = 77
start = "-90s"
user = "ada"
uid = 1234
command = ["/usr/bin/python3", "-u", "a b.py"]
cgroup = "0::/system.slice/x.service"
"#;
    Rig::alone("a_process_is_whom_and_when_the_scenario_says", ONE, |rig| {
        let _nvml = rig.nvml();
        let process = procfs::process::Process::new_with_root(rig.procfs().join("77")).unwrap();
        assert_eq!(process.cmdline().unwrap(), ["/usr/bin/python3", "-u", "a b.py"]);
        let stat = process.stat().unwrap();
        assert_eq!(stat.comm, "python3");
        assert_eq!(process.status().unwrap().euid, 1234);
        let passwd = std::fs::read_to_string(rig.procfs().join("passwd")).unwrap();
        assert_eq!(passwd, "ada:x:1234:1234::/:\n");
        let boot = std::fs::read_to_string(rig.procfs().join("stat")).unwrap();
        let boot: u64 = boot.lines().find_map(|l| l.strip_prefix("btime ")).unwrap().parse().unwrap();
        let age = unix_now() - (boot as f64 + stat.starttime as f64 / 100.0);
        assert!((90.0..110.0).contains(&age), "{age}");
        let groups = std::fs::read_to_string(rig.procfs().join("77/cgroup")).unwrap();
        assert_eq!(groups, "0::/system.slice/x.service\n");
    });
}
