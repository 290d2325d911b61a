//! The HTML page, from a snapshot and from the real binary. That no name becomes markup is a property
//! (`tests/properties`).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::harness::Exporter;
use crate::web::{Served, process};
use gpu_readings::snapshot::*;

#[test]
fn the_page_shows_each_gpu_and_the_links() {
    let server = Served::start();
    let processes = vec![process(11, "small", 1 << 30), process(12, "large", 9 << 30)];
    server.show(GpuState::Up, "NVIDIA H200", processes);
    let page = server.get("/");
    assert_eq!((page.status, page.header("content-type")), (200, "text/html; charset=utf-8"));
    assert!(page.header("content-security-policy").starts_with("default-src 'none'"));
    let text = &page.body;
    for part in ["NVIDIA H200", "20.0 GiB of 80.0 GiB", "40.0 GiB", "50.0 GiB", "last 60 s", ">up<", "docs/metrics.md"]
    {
        assert!(text.contains(part), "{part} is missing");
    }
    for link in ["/metrics", "/healthz", "/readyz"] {
        assert!(text.contains(&format!("href=\"{link}\"")), "{link}");
    }
    assert!(text.find("9.0 GiB large").unwrap() < text.find("1.0 GiB small").unwrap());
    assert!(!text.contains("SIMULATED") && !text.contains("What to look at"));
    assert!(text.contains("<title>vram-exporter</title>"), "no name of the machine is known");
}

#[test]
fn the_page_loads_its_own_files_and_nothing_else() {
    let server = Served::start();
    let page = server.get("/");
    let policy = page.header("content-security-policy");
    for part in
        ["default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "img-src 'self' data:"]
    {
        assert!(policy.split("; ").any(|allowed| allowed == part), "{policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    assert_eq!(page.header("x-content-type-options"), "nosniff");
    let text = &page.body;
    // There is neither an inline script nor an inline style. The policy would block both.
    assert_eq!(text.matches("<script").count(), 1);
    assert!(text.contains("<script type=\"module\" src=\"/page.js\"></script>"), "{text}");
    assert!(!text.contains("<style") && !text.contains("style=") && !text.contains("://"), "{text}");
    assert!(text.contains("<noscript><meta http-equiv=\"refresh\" content=\"5\"></noscript>"), "{text}");
    let scripts = scripts(&server);
    assert!(scripts.len() > 5, "{:?}", scripts.keys());
    let types = scripts.keys().map(|path| (path.as_str(), "text/javascript; charset=utf-8"));
    for (path, content_type) in types.chain([("/page.css", "text/css; charset=utf-8")]) {
        let file = server.get(path);
        assert_eq!((file.status, file.header("content-type")), (200, content_type), "{path}");
        assert_eq!(file.header("x-content-type-options"), "nosniff");
        assert!(!file.body.contains("://"), "{path} names another host");
        // Text never becomes markup or code.
        for sink in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("] {
            assert!(!file.body.contains(sink), "{path} contains {sink}");
        }
    }
}

#[test]
fn the_scripts_are_short_and_do_not_import_each_other_in_circles() {
    let server = Served::start();
    let mut left = scripts(&server);
    for (path, text) in &left {
        assert!(text.starts_with("// ") && text.contains("\n//\n// Invariant"), "{path} lacks purpose or invariant");
        assert!(text.lines().count() <= 350, "{path} has {} lines", text.lines().count());
    }
    // A script that imports none of those that are left is in no circle.
    while !left.is_empty() {
        let before = left.len();
        let names: Vec<String> = left.keys().cloned().collect();
        left.retain(|_, text| imported(text).any(|path| names.contains(&path)));
        assert!(left.len() < before, "these import each other: {:?}", left.keys());
    }
}

/// The scripts that the page loads, by their paths: the main one, and all that a script imports.
fn scripts(server: &Served) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut wanted = vec!["/page.js".to_owned()];
    while let Some(path) = wanted.pop() {
        if let Entry::Vacant(new) = found.entry(path) {
            let file = server.get(new.key());
            assert_eq!(file.status, 200, "{}", new.key());
            wanted.extend(imported(&file.body));
            new.insert(file.body.clone());
        }
    }
    found
}

/// The paths that a script imports.
fn imported(text: &str) -> impl Iterator<Item = String> {
    let names = text.split(" from \"./").skip(1).filter_map(|rest| rest.split('"').next());
    names.map(|name| format!("/{name}"))
}

#[test]
fn the_page_names_its_machine_and_what_a_demo_shows() {
    let server = Served::with("/metrics", |state| {
        (state.host, state.sights) = (Some("node-<7>&".to_owned()), vec!["a <b>spike</b>"]);
    });
    let page = server.get("/");
    let text = &page.body;
    assert!(text.contains("<title>node-&lt;7&gt;&amp; – vram-exporter</title>"), "{text}");
    assert!(text.contains("<h1>node-&lt;7&gt;&amp; – vram-exporter</h1>"), "{text}");
    assert!(text.contains("What to look at in this demo</h2>\n<ul><li>a &lt;b&gt;spike&lt;/b&gt;</li></ul>"), "{text}");
}

#[test]
fn only_the_default_demo_says_what_to_look_at() {
    for (demo, shows) in [("--demo", true), ("--demo=idle-h200", false)] {
        let exporter = Exporter::start(crate::harness::bare(&[demo]));
        let page = exporter.get("/").unwrap().body;
        assert_eq!(page.contains("What to look at"), shows, "{demo}: {page}");
        let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
        assert!(page.contains(&format!("<title>{host} – vram-exporter</title>")), "{page}");
    }
}

#[test]
fn the_page_shows_ended_processes_with_their_peaks() {
    let server = Served::start();
    let ago = |seconds| Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap();
    let workload =
        |name: &str| Some(Arc::new(Workload { name: name.to_owned(), kind: WorkloadKind::Slurm, pod: None }));
    let owned = |process: Process, owner: &str| {
        let owner = Owner { workload: workload(owner), ..(*process.owner).clone() };
        Process { owner: Arc::new(owner), ..process }
    };
    let ended = |pid, name: &str, peak: u64, (after, by)| {
        let ended = Some(Ended { after: ago(after), by: ago(by) });
        Process { alive: false, ended, used: None, peak: Some(peak << 20), ..process(pid, name, 0) }
    };
    let mut processes = vec![
        owned(process(40, "serve.py", 20992 << 20), "unit:serve.service"),
        ended(41, "tiny.py", 1 << 10, (31, 30)),
        owned(ended(42, "train.py", 80384, (31, 30)), "slurm:7"),
        ended(43, "eval.py", 4096, (900, 200)),
    ];
    processes[3].owner = Arc::new(Owner { user: Some("ada".to_owned()), ..(*processes[3].owner).clone() });
    processes.extend((50..60).map(|pid| ended(pid, "forgotten.py", 5, (31, 30))));
    server.show(GpuState::Up, "H200", processes);
    let page = server.get("/");
    let list = page.body.split("<ul>").nth(1).unwrap().split("</ul>").next().unwrap();
    let list = list.replace("<span class=\"soft\">", "").replace("</span>", "");
    let rows: Vec<&str> = list.split("<li").skip(1).map(|row| row.strip_suffix("</li>").unwrap()).collect();
    let (rows_shown, ends): (Vec<_>, Vec<_>) =
        rows.iter().map(|row| row.split_once(", ended ").unwrap_or((row, ""))).unzip();
    let expected = [
        ">20.5 GiB serve.py 40 of unit:serve.service",
        " class=\"soft\">peak 78.5 GiB train.py 42 of slurm:7",
        " class=\"soft\">peak 4.0 GiB eval.py 43 of ada",
        " class=\"soft\">peak 1.0 GiB tiny.py 41",
    ];
    assert_eq!(rows_shown, expected);
    assert_eq!((ends[0], ends[2]), ("", "3 min to 15 min ago"));
    assert!(ends[1].ends_with(" s ago") && !ends[1].contains("to"), "{ends:?}");
}

#[test]
fn while_the_driver_opens_the_page_says_so() {
    let server = Served::start();
    let starting = server.get("/");
    assert!(starting.body.contains("Starting: the driver is being opened"), "{}", starting.body);
    assert!(!starting.body.contains("problem\"") && !starting.body.contains("No "));
    let problem = Some("the driver was released on request".to_owned());
    server.snapshot.clear(Driver { problem, ..Driver::default() });
    let released = server.get("/");
    assert!(released.body.contains("No GPU can be read: the driver was released on request"));
    assert!(!released.body.contains("Starting") && !released.body.contains("No NVIDIA driver"));
}

#[test]
fn the_page_has_an_icon() {
    let server = Served::start();
    let page = server.get("/");
    assert!(page.body.contains("<link rel=\"icon\" type=\"image/svg+xml\" href=\"/favicon.ico\">"));
    assert!(page.header("content-security-policy").contains("img-src 'self'"));
    let icon = server.get("/favicon.ico");
    assert_eq!((icon.status, icon.header("content-type")), (200, "image/svg+xml"));
    assert!(icon.body.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\"") && icon.body.ends_with("</svg>\n"));
    assert_eq!(server.ask("POST", "/favicon.ico", "Content-Length: 0\r\n").status, 405);
    let there = Served::with("/favicon.ico", |_| ());
    assert_eq!(there.get("/favicon.ico").value("vram_exporter_nvml_up"), "0", "the configured path wins");
}

#[test]
fn the_page_says_what_is_wrong() {
    let server = Served::start();
    let problem = Some("no <library> at /usr/lib".to_owned());
    server.snapshot.clear(Driver { problem, ..Driver::default() });
    assert!(server.get("/").body.contains("no &lt;library&gt; at /usr/lib"));
    server.snapshot.clear(Driver { up: true, ..Driver::default() });
    assert!(server.get("/").body.contains("reports no GPU"));
    server.show(GpuState::Stalled, "H200", vec![process(1, "unseen", 1 << 30)]);
    let stalled = server.get("/");
    assert!(stalled.body.contains("stalled"));
    assert!(!stalled.body.contains("20.0 GiB") && !stalled.body.contains("unseen"), "old values are shown");
}

#[test]
fn simulated_gpus_are_called_so() {
    let server = Served::start();
    server.show(GpuState::Up, "H200", vec![]);
    let driver = Driver { simulated: true, ..(*server.snapshot.driver.load_full()).clone() };
    server.snapshot.driver.store(Arc::new(driver));
    assert!(server.get("/").body.contains("SIMULATED GPUs"));
}
