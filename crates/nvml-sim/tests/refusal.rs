//! Impossible scenarios are refused: nvmlInit fails, and one line names the file and the invalid key.

mod rig;

use std::process::Command;

/// Opens the library with a scenario in a child process and returns the lines that the child printed.
fn said(scenario: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wrong.toml");
    std::fs::write(&path, scenario).unwrap();
    opened(path.to_str().unwrap())
}

fn opened(scenario: &str) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["child_opens_the_library", "--exact", "--nocapture", "--include-ignored"])
        .env("NVML_SIM_SCENARIO", scenario)
        .env("NVML_SIM_TEST_CHILD", "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    text.lines().skip_while(|line| !line.starts_with("nvml-sim: ")).collect::<Vec<_>>().join("\n")
}

#[test]
#[ignore = "runs only as the child of the tests below"]
fn child_opens_the_library() {
    if std::env::var_os("NVML_SIM_TEST_CHILD").is_some() {
        let opened = nvml_wrapper::Nvml::builder().lib_path(rig::library().as_os_str()).init();
        assert!(opened.is_err());
    }
}

const GPU: &str = "[[gpu]]\nmodel = \"H200\"\n";

/// A process that has pid 5 from `start` to `end`, repeated every 800 ms.
fn turns(start: &str, end: &str) -> String {
    format!("[[process]]\npid = 5\nstart = \"{start}\"\nend = \"{end}\"\nrepeat = \"800ms\"\n")
}

/// A driver that has limits for cgroups, and one such limit.
fn limit(more: &str) -> String {
    format!("driver = {{ cuda = 13050 }}\n{GPU}[[memory_limit]]\ncgroup = \"/a\"\n{more}\n")
}

/// A vGPU on a GPU with `host` in its table.
fn vgpu(host: &str, more: &str) -> String {
    format!("{GPU}{host}\n[[vgpu]]\nvm = \"7\"\nmemory = \"1GiB\"\n{more}\n")
}

fn container(id: &str, gpu: u32) -> String {
    format!("[[container]]\nid = \"{id}\"\nnamespace = \"n\"\npod = \"p\"\nname = \"c\"\ngpus = [{gpu}]\n")
}

#[test]
fn the_key_and_the_file_are_named() {
    let cases = [
        ("sed = 1\n".to_owned() + GPU, "sed"),
        ("seed = \"x\"\n".to_owned() + GPU, "seed"),
        ("seed = 1\n".to_owned(), "gpu"),
        ("[[gpu]]\nmodel = \"H300\"\n".to_owned(), "gpu[0].model: no model `H300`"),
        (GPU.to_owned() + "mig = [\"3g.40gb\"]\n", "gpu[0].mig[0]: no MIG profile `3g.40gb`; the nearest is `3g.71gb`"),
        (GPU.to_owned() + "mig = [\"7g.141gb\", \"1g.18gb\"]\n", "gpu[0].mig"),
        ("[[gpu]]\nmodel = \"L4\"\nmig = []\n".to_owned(), "gpu[0].mig: an NVIDIA L4 has no MIG"),
        (GPU.to_owned() + "[[memory_limit]]\ncgroup = \"/a\"\n", "memory_limit[0].gpu: the driver has no such limits"),
        (limit("gpu = 1"), "memory_limit[0].gpu: no GPU 1"),
        (limit("hard = \"1TiB\""), "memory_limit[0].hard: is more than the 150754820096 bytes of the GPU"),
        (limit("hard = \"1GiB\"\nsoft = \"2GiB\""), "memory_limit[0].soft: is above the hard limit"),
        (limit("[[memory_limit]]\ncgroup = \"/a\""), "memory_limit[1].cgroup: is given twice"),
        (limit("[[memory_limit]]\ncgroup = \"a\""), "memory_limit[1].cgroup: must be a path that begins with `/`"),
        (vgpu("", "gpu = 1"), "vgpu[0].gpu: no GPU 1"),
        (vgpu("", ""), "vgpu[0].gpu: the GPU hosts no vGPUs"),
        (vgpu("vgpu_host = true", "").replace("1GiB", "1TiB"), "vgpu[0].memory: is more than the 150754820096 bytes"),
        (vgpu("vgpu_host = true", "").replace("\"7\"", "\"\""), "vgpu[0].vm: must have 1 to 79 bytes"),
        (GPU.to_owned() + "[[process]]\ngpu = 1\n", "process[0].gpu: no GPU 1"),
        (GPU.to_owned() + "[[process]]\nmemory = \"200GiB\"\n", "process[0].memory"),
        (GPU.to_owned() + "[[process]]\nmemory = \"2GB\"\n", "`2GB` is not a size"),
        (GPU.to_owned() + "[[process]]\nmemory = [{kind=\"jump\"}]\n", "jump"),
        (GPU.to_owned() + "[[process]]\nmemory = [{kind=\"constant\", value=\"1GiB\", x=1}]\n", "`x`"),
        (GPU.to_owned() + "[[process]]\nutilization = 2\n", "`2` is not a number from 0 to 1"),
        (GPU.to_owned() + "[[process]]\ntype = []\nutilization = 1\n", "process[0].utilization"),
        (
            GPU.to_owned() + "[[process]]\nutilization = [{ kind = \"leak\", base = 0, rate = 0.1, for = \"11s\" }]\n",
            "process[0].utilization: rises above 1",
        ),
        (GPU.to_owned() + "power = -1\n", "gpu[0].power"),
        (
            "[[gpu]]\nmodel = \"GB10\"\nlink = { width = 8 }\n".to_owned(),
            "gpu[0].link: an NVIDIA GB10 has no PCIe link",
        ),
        (GPU.to_owned() + "addressing_mode = \"ATS\"\n", "ATS"),
        (GPU.to_owned() + "errors = { remap_banks = [1, 2] }\n", "remap_banks"),
        (GPU.to_owned() + "temperature = nan\n", "gpu[0].temperature"),
        (GPU.to_owned() + "[[process]]\nend = \"0s\"\n", "process[0].end"),
        (GPU.to_owned() + "[[process]]\nrepeat = \"9s\"\n", "process[0].repeat"),
        (GPU.to_owned() + "[[process]]\npid = 5\n[[process]]\npid = 5\n", "pid 5"),
        (GPU.to_owned() + &turns("0s", "401ms") + &turns("400ms", "800ms"), "pid 5"),
        (GPU.to_owned() + &turns("0s", "400ms") + &turns("400ms", "801ms"), "pid 5"),
        (GPU.to_owned() + &container("x", 0), "container[0].id: `x` is not 64 hexadecimal digits"),
        (GPU.to_owned() + &container(&"a".repeat(64), 1), "container[0].gpus: no GPU 1"),
        (GPU.to_owned() + &container(&"a".repeat(64), 0).repeat(2), "container[1].id: is given twice"),
        (
            GPU.to_owned() + &container(&"a".repeat(64), 0) + "claim = ''",
            "container[0].claim: is empty, or holds a control character",
        ),
        (
            GPU.to_owned() + &container(&"a".repeat(64), 0) + "claim_memory = '1GiB'",
            "container[0].claim: is absent, although something is said about it",
        ),
        (GPU.to_owned() + "[[fault]]\ncall = \"nvmlDeviceGetMemory\"\nkind = \"hang\"\n", "fault[0].call"),
        (
            GPU.to_owned() + "[[fault]]\ncall = \"*\"\nkind = \"error\"\ncode = \"LOST\"\n",
            "fault[0].code: no code `LOST`",
        ),
        (GPU.to_owned() + "[[fault]]\ncall = \"*\"\nkind = \"slow\"\n", "fault[0].delay"),
        (GPU.to_owned() + "[[fault]]\ncall = \"*\"\nkind = \"hang\"\nvalue = \"ones\"\n", "fault[0].value"),
        (GPU.to_owned() + "[[fault]]\ncall = \"*\"\nkind = \"hang\"\nmig = 0\n", "fault[0].mig"),
        (
            GPU.to_owned() + "[[fault]]\ncall = \"*\"\nkind = \"hang\"\ngpu = 0\nmig = 0\nskip_mig = true\n",
            "fault[0].mig: means nothing together with `skip_mig`",
        ),
        (GPU.to_owned() + "[[xid]]\ngpu = 3\ncode = 1\n", "xid[0].gpu"),
    ];
    for (scenario, names) in cases {
        let line = said(&scenario);
        assert!(line.contains(names) && line.contains("wrong.toml"), "{scenario}\n{line}");
    }
}

#[test]
fn a_name_that_is_neither_file_nor_built_in_is_told_with_what_there_is() {
    let line = opened("no-such-thing");
    assert!(line.contains("no-such-thing") && line.contains("busy-h200"), "{line}");
}
