//! The configuration as users see it: valid and invalid files, the order of the layers, the printed values, refusals.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use generated_files::assert_committed;
use vram_exporter::config::keys::{Key, keys};
use vram_exporter::config::setting::Kind;
use vram_exporter::config::{ApiServer, Command, Config, load, reference};

use crate::selection::table_of_alerts;

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn given(args: &[&str], env: &[(&str, &str)]) -> Result<Command, String> {
    let args = ["vram-exporter"].iter().chain(args).map(OsString::from);
    load(args, env.iter().map(|(name, value)| (name.into(), value.into()))).map_err(|error| error.to_string())
}

fn config(args: &[&str], env: &[(&str, &str)]) -> Config {
    match given(args, env) {
        Ok(Command::Run(config)) => config,
        other => panic!("{args:?} {env:?}: {other:?}"),
    }
}

fn from_file(path: &Path) -> Result<Command, String> {
    given(&["--config.file", path.to_str().unwrap()], &[])
}

/// Writes a file and reads it as configuration.
fn from_text(name: &str, text: impl AsRef<[u8]>) -> Result<Command, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    std::fs::write(&path, text).unwrap();
    from_file(&path).map_err(|error| error.replace(&format!("{}/", dir.path().display()), ""))
}

fn fixtures(kind: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(root("tests/fixtures/config"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_str().unwrap().contains(kind) && path.extension().unwrap() != "expected")
        .collect();
    found.sort();
    assert!(found.len() >= 3, "{kind}: {found:?}");
    found
}

/// A value for the key that differs from its default and is valid with the defaults, and with the changed values, of the other
/// keys.
fn changed(key: &Key) -> String {
    let default = key.default.unwrap_or_default();
    match &key.kind {
        Kind::Duration(..) | Kind::Hertz(..) | Kind::Count(..) => {
            let (number, unit) = default.split_at(default.find(char::is_alphabetic).unwrap_or(default.len()));
            format!("{}{unit}", 2 * number.parse::<u64>().unwrap())
        }
        Kind::Switch(_) => (default != "true").to_string(),
        Kind::Choice(words) => words.iter().map(|(word, _)| *word).rfind(|word| *word != default).unwrap().to_owned(),
        Kind::Path(..) | Kind::Folder(_) => format!("/elsewhere/{}", key.name),
        Kind::Addresses(_) => format!("unix:/run/{}.sock", key.name),
        Kind::Globs(_) if key.name == "metrics.exclude" => "process_*".to_owned(),
        Kind::Globs(_) => "gpu_memory_*,gpu_up".to_owned(),
        Kind::Hosts(_) => "gpu1.example.com,[::1]".to_owned(),
        Kind::PodLabels(_) => "team,example.com/queue".to_owned(),
        Kind::UrlPath(_) => "/other".to_owned(),
        Kind::NodeName(_) => "gpu-node-1".to_owned(),
        Kind::ApiServer(_) => "https://10.0.0.1:6443".to_owned(),
        Kind::OtlpEndpoint(_) => "http://localhost:4318".to_owned(),
        Kind::Mode(_) => "0660".to_owned(),
        Kind::Group(_) => "gpu-users".to_owned(),
        Kind::LogFilter(_) => "warn,vram_exporter=debug".to_owned(),
    }
}

/// The keys in the same section that must be set for the key to be allowed.
fn company(key: &Key) -> Vec<&'static Key> {
    let names: &[&str] = match key.name {
        "kubernetes.api-server" => &["kubernetes.node-name"],
        "kubernetes.pod-labels" => &["kubernetes.node-name", "kubernetes.api-server"],
        "kubernetes.token-file" | "kubernetes.ca-file" => &["kubernetes.node-name", "kubernetes.api-server"],
        "dcgm.collectors-file" => &["dcgm.listen-address"],
        "otlp.headers-file" | "otlp.ca-file" => &["otlp.endpoint"],
        _ => &[],
    };
    names.iter().map(|name| Key::find(name).unwrap()).collect()
}

/// The changed value as TOML and YAML write it.
fn changed_in_file(key: &Key) -> String {
    let text = changed(key);
    // Permissions are text, because in a number a leading zero is ignored or is an error.
    let bare =
        ["true", "false"].contains(&&*text) || (text.parse::<f64>().is_ok() && !matches!(key.kind, Kind::Mode(_)));
    if bare { text } else { format!("{text:?}") }
}

#[test]
fn the_defaults_are_those_of_the_reference() {
    let config = config(&[], &[]);
    assert_eq!(config.web.listen_addresses, [":9836".parse().unwrap()]);
    assert_eq!(config.web.telemetry_path, "/metrics");
    assert_eq!((config.memory.rate, config.memory.idle_rate), (100.0, 1.0));
    assert_eq!(config.memory.peak_window, Duration::from_secs(60));
    assert_eq!(config.process.linger, Duration::from_secs(300));
    assert_eq!((config.nvml.library, config.path.passwd, config.demo), (None, None, None));
}

#[test]
fn every_key_reaches_the_configuration_from_every_place() {
    for key in keys() {
        let keys: Vec<&Key> = company(key).into_iter().chain([key]).collect();
        let flags: Vec<String> = keys.iter().map(|key| format!("--{}={}", key.name, changed(key))).collect();
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let by_flag = config(&flags, &[]);
        let (own, company) = flags.split_last().unwrap();
        assert_ne!(by_flag, config(company, &[]), "{own} does not reach the configuration");
        assert_eq!(config(company, &[(&key.variable(), &changed(key))]), by_flag, "{}", key.variable());
        let section = key.parts().0;
        let lines = |begin: &str, between: &str| -> String {
            keys.iter().map(|key| format!("{begin}{}{between} {}\n", key.parts().1, changed_in_file(key))).collect()
        };
        let toml = from_text("a.toml", format!("[{section}]\n{}", lines("", " =")));
        assert_eq!(toml, Ok(Command::Run(by_flag.clone())), "{} in TOML", key.name);
        let yaml = from_text("a.yaml", format!("{section}:\n{}", lines("  ", ":")));
        assert_eq!(yaml, Ok(Command::Run(by_flag)), "{} in YAML", key.name);
    }
}

#[test]
fn flags_win_over_environment_over_file_over_defaults() {
    let file = root("tests/fixtures/config/full.good.toml");
    let file = file.to_str().unwrap();
    let env = [("VRAM_EXPORTER_MEMORY_RATE", "300"), ("VRAM_EXPORTER_CONFIG_FILE", file)];
    assert_eq!(config(&[], &[]).memory.rate, 100.0);
    assert_eq!(config(&["--config.file", file], &[]).memory.rate, 200.0);
    assert_eq!(config(&[], &env).memory.rate, 300.0);
    assert_eq!(config(&["--memory.rate", "400"], &env).memory.rate, 400.0);
    // The lower layers still provide the values that the upper ones do not set.
    assert_eq!(config(&["--memory.rate", "400"], &env).process.series_limit, 64);
    // A flag names a different file than the environment does: only the flag's file is read.
    let other = root("tests/fixtures/config/minimal.good.toml");
    assert_eq!(config(&["--config.file", other.to_str().unwrap()], &env[1..]).memory.rate, 100.0);
}

#[test]
fn a_list_replaces_the_list_below_it() {
    let file = root("tests/fixtures/config/full.good.toml");
    let file = file.to_str().unwrap();
    assert_eq!(config(&["--config.file", file], &[]).web.listen_addresses.len(), 2);
    let one = config(&["--config.file", file, "--web.listen-address=:0"], &[]);
    assert_eq!(one.web.listen_addresses, [":0".parse().unwrap()]);
    let two = config(&["--web.listen-address=:1", "--web.listen-address", "[::1]:2"], &[]);
    assert_eq!(two, config(&[], &[("VRAM_EXPORTER_WEB_LISTEN_ADDRESS", ":1, [::1]:2")]));
    assert_eq!(two.web.listen_addresses.len(), 2);
    for apart in [
        vec!["--web.listen-address=127.0.0.1:1,[::1]:1,127.0.0.2:1"],
        vec!["--web.listen-address=:0,127.0.0.1:0", "--web.health-address=:0"],
        vec!["--web.systemd-socket", "--web.health-address=:9836"],
    ] {
        config(&apart, &[]);
    }
}

#[test]
fn empty_text_unsets_a_key_without_a_default() {
    let env = [("VRAM_EXPORTER_NVML_LIBRARY", "/opt/a.so")];
    assert_eq!(config(&[], &env).nvml.library, Some("/opt/a.so".into()));
    assert_eq!(config(&["--nvml.library="], &env).nvml.library, None);
}

#[test]
fn valid_files_load_and_toml_and_yaml_agree() {
    for path in fixtures(".good.") {
        assert!(matches!(from_file(&path), Ok(Command::Run(_))), "{}: {:?}", path.display(), from_file(&path));
    }
    let both = ["toml", "yml"].map(|end| from_file(&root(&format!("tests/fixtures/config/full.good.{end}"))));
    assert_eq!(both[0], both[1]);
}

#[test]
fn invalid_files_say_what_is_wrong() {
    for path in fixtures(".bad.") {
        let message = from_file(&path).expect_err(&path.display().to_string());
        let message = message.replace(&format!("{}/", path.parent().unwrap().display()), "");
        let mut expected = path.clone().into_os_string();
        expected.push(".expected");
        assert_committed(Path::new(&expected), &format!("{message}\n"));
    }
}

/// The file has a line for each command line, variables first, and below it the whole message.
#[test]
fn each_refused_command_line_has_its_committed_message() {
    let path = root("tests/fixtures/config/refused-flags.txt");
    let committed = std::fs::read_to_string(&path).unwrap();
    let answered = committed.lines().filter_map(|line| line.strip_prefix("$ ")).map(|line| {
        let (variables, args): (Vec<_>, Vec<_>) = line.split(' ').partition(|word| word.starts_with("VRAM_EXPORTER_"));
        let env: Vec<_> = variables.iter().map(|variable| variable.split_once('=').unwrap()).collect();
        format!("$ {line}\n{}\n", given(&args, &env).expect_err(line))
    });
    let answered: Vec<_> = answered.collect();
    assert!(answered.len() > 40, "{}", answered.len());
    assert_committed(&path, &answered.concat());
}

#[test]
fn print_config_reads_back_the_same() {
    let all: Vec<String> = keys().map(|key| format!("--{}={}", key.name, changed(key))).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let odd = ["--path.procfs=/a\\b\"c d#e'f ü", "--web.listen-address=:0,[::1]:0,127.0.0.1:0", "--memory.rate=1.1"];
    for args in [&[][..], &all, &odd] {
        let Ok(Command::PrintConfig(printed)) = given(&[args, &["--print-config"]].concat(), &[]) else {
            panic!("{args:?} prints nothing")
        };
        assert_eq!(from_text("printed.toml", &printed), Ok(Command::Run(config(args, &[]))), "{printed}");
        for key in keys() {
            assert!(printed.contains(key.parts().1) && printed.contains(&format!("[{}]", key.parts().0)));
        }
    }
}

#[test]
fn print_config_names_the_origin_of_each_value() {
    let file = root("tests/fixtures/config/minimal.good.toml");
    let args = ["--print-config", "--memory.rate=7", "--config.file", file.to_str().unwrap()];
    let Ok(Command::PrintConfig(printed)) = given(&args, &[("VRAM_EXPORTER_LOG_LEVEL", "debug")]) else {
        panic!("nothing is printed")
    };
    for origin in [
        "# Default: 100. Set by: flag --memory.rate.\nrate = 7\n",
        "# Default: info. Set by: environment variable VRAM_EXPORTER_LOG_LEVEL.\nlevel = \"debug\"\n",
        "minimal.good.toml.\nformat = \"json\"\n",
        "# Default: 60s. Set by: default.\npeak-window = \"60s\"\n",
        "# Default: not set. Set by: default.\n# library =\n",
    ] {
        assert!(printed.contains(origin), "{origin}\nis not in\n{printed}");
    }
}

#[test]
fn text_that_is_not_utf8_is_refused_without_a_panic() {
    let bad = || OsString::from_vec(b"/\xff\n".to_vec());
    let mut flag = OsString::from("--path.procfs=");
    flag.push(bad());
    for args in [vec![flag], vec![bad()], vec!["--demo".into(), bad()], vec!["--path.procfs".into(), bad()]] {
        let error = load(std::iter::once("x".into()).chain(args), []).unwrap_err().to_string();
        assert!(!error.is_empty() && error.lines().count() == 1, "{error}");
    }
    let mut name = OsString::from("VRAM_EXPORTER_");
    name.push(bad());
    let variables = [("VRAM_EXPORTER_PATH_PROCFS".into(), bad()), (name, bad()), (bad(), bad())];
    let error = load(["x".into()], variables).unwrap_err().to_string();
    assert!(error.contains("VRAM_EXPORTER_PATH_PROCFS") && error.contains("not UTF-8"), "{error}");
    assert_eq!(error.lines().count(), 2, "{error}");
}

#[test]
fn variables_of_other_programs_are_ignored() {
    let others = [
        ("VRAM_EXPORTER_PORT", "tcp://10.0.0.1:9836"),
        ("VRAM_EXPORTER_SERVICE_HOST", "10.0.0.1"),
        ("VRAM_EXPORTER_SERVICE_PORT_HTTP", "9836"),
        ("VRAM_EXPORTER_PORT_9836_TCP_ADDR", "10.0.0.1"),
        ("VRAM_EXPORTER_TEST_ANY", "1"),
        ("VRAM_EXPORTER_CONFIG_FILE", ""),
        ("VRAM", "1"),
        ("MEMORY_RATE", "rubbish"),
    ];
    assert_eq!(config(&[], &others), config(&[], &[]));
}

#[test]
fn hostile_files_are_refused() {
    let laughs: String = (0..20).fold("a0: &a0 [x]\n".to_owned(), |text, n| {
        format!("{text}a{}: &a{} [{}]\n", n + 1, n + 1, vec![format!("*a{n}"); 10].join(","))
    });
    for (name, text, why) in [
        ("a.toml", vec![b'#'; 1024 * 1024 + 1], "longer than 1048576 bytes"),
        ("a.toml", b"\x7fELF\x02\xff\xfe".to_vec(), "not UTF-8 text (byte 5)"),
        ("a.toml", b"a = \0".to_vec(), "cannot be parsed"),
        ("a.ini", b"[memory]".to_vec(), "must end in .toml, .yaml or .yml"),
        ("a.toml", format!("a = {}", "[".repeat(500_000)).into_bytes(), "cannot be parsed"),
        ("a.toml", format!("{}a = 1", "a.".repeat(300_000)).into_bytes(), "recursion limit"),
        ("a.yaml", format!("a: {}", "[".repeat(500_000)).into_bytes(), "nested too deeply"),
        ("a.yaml", "- ".repeat(500_000).into_bytes(), "nested too deeply"),
        ("a.yaml", laughs.into_bytes(), "anchors and aliases"),
    ] {
        let message = from_text(name, &text).expect_err(why);
        assert!(message.contains(why) && message.lines().count() == 1 && message.len() < 500, "{name}: {message}");
        assert!(message.starts_with(name), "{message}");
    }
    let many: String = (0..5_000).map(|n| format!("k{n} = 1\n")).collect();
    assert!(from_text("a.toml", many).unwrap_err().ends_with("more"));
}

#[test]
fn anything_but_a_regular_file_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("folder.toml");
    std::fs::create_dir(&folder).unwrap();
    assert!(from_file(&folder).unwrap_err().contains("not a regular file"));
    assert!(from_file(&dir.path().join("absent.toml")).unwrap_err().contains("cannot be read"));
    let device = dir.path().join("device.toml");
    std::os::unix::fs::symlink("/dev/zero", &device).unwrap();
    assert!(from_file(&device).unwrap_err().contains("not a regular file"));
    let around = dir.path().join("around.toml");
    std::os::unix::fs::symlink(&around, &around).unwrap();
    assert!(from_file(&around).unwrap_err().contains("cannot be read"));
}

#[test]
fn empty_files_set_nothing() {
    let defaults = Ok(Command::Run(config(&[], &[])));
    for (name, text) in [
        ("a.toml", ""),
        ("a.yaml", ""),
        ("a.yaml", "---\n# nothing\n"),
        ("a.yml", "memory:\nnvml:\n  library:\n"),
        ("a.toml", "\u{feff}[memory]\n"),
    ] {
        assert_eq!(from_text(name, text), defaults, "{name} {text:?}");
    }
}

#[test]
fn actions_and_the_demo() {
    assert!(matches!(given(&["--once"], &[]), Ok(Command::Once(_))));
    assert_eq!(config(&["--demo"], &[]).demo.as_deref(), Some("demo"));
    assert_eq!(config(&["--demo=leak"], &[]).demo.as_deref(), Some("leak"));
    // A bare --demo leaves the next argument alone.
    assert_eq!(config(&["--demo", "--memory.rate", "5"], &[]).memory.rate, 5.0);
    let kubernetes = config(&["--kubernetes.node-name=n", "--kubernetes.api-server=in-cluster"], &[]).kubernetes;
    assert_eq!(kubernetes.api_server, Some(ApiServer::InCluster));
    assert!(config(&["--process.command-line"], &[]).process.command_line);
    assert!(!config(&["--process.command-line=false"], &[]).process.command_line);
    let Ok(Command::CheckConfig { summary, .. }) = given(&["--check-config", "--memory.rate=5"], &[]) else {
        panic!("no summary")
    };
    assert_eq!(summary, "configuration is valid: no file; keys set: 0 from file, 0 from environment, 1 from flags");
}

#[test]
fn help_and_version_explain() {
    let Ok(Command::Explain(version)) = given(&["--version"], &[]) else { panic!("no version") };
    assert!(version.starts_with(concat!("vram-exporter ", env!("CARGO_PKG_VERSION"))), "{version}");
    assert_eq!(given(&["-V"], &[]), Ok(Command::Explain(version)));
    for flag in ["-h", "--help"] {
        let Ok(Command::Explain(help)) = given(&["--memory.rate=rubbish", flag], &[]) else { panic!("no help") };
        for key in keys() {
            assert!(help.contains(&format!("--{}", key.name)), "{}", key.name);
        }
        for text in
            ["GPU memory:", "[default: 60s]", "--config.file", "--demo[=<SCENARIO>]", "--process.command-line[="]
        {
            assert!(help.contains(text), "{text}\nis not in\n{help}");
        }
        // The text is wrapped.
        let words: Vec<&str> = help.split_whitespace().map(|word| word.trim_end_matches([',', '.'])).collect();
        for scenario in nvml_sim::scenarios() {
            assert!(words.contains(&scenario), "{scenario} is not in\n{help}");
        }
    }
}

/// The page has the reference, a part that is written by hand, and a table made from the shipped alerts.
#[test]
fn the_reference_is_fresh_and_names_the_families_that_alerts_need() {
    const WRITTEN: &str = "\n<!-- Written by hand up to the next comment. -->\n";
    const TABLE: &str =
        "<!-- Generated from deploy/prometheus/rules: `UPDATE_GOLDEN=1 cargo test --test it config` -->\n\n";
    let path = root("docs/configuration.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (_, rest) = page.split_once(WRITTEN).expect("the comment before the part that is written by hand");
    let (written, _) = rest.split_once(TABLE).expect("the comment before the table");
    assert_committed(&path, &format!("{}{WRITTEN}{written}{TABLE}{}", reference(), table_of_alerts()));
}

#[test]
fn localhost_and_warning_are_accepted() {
    let config = config(&["--web.listen-address=localhost:9836", "--log.level=warning"], &[]);
    assert_eq!(config.web.listen_addresses, ["127.0.0.1:9836".parse().unwrap()]);
    assert_eq!(config.log.level, "warn");
}
