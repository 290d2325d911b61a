//! Any configuration: it is complete and within its bounds, or the errors name what is wrong and what is allowed.

mod arbitrary;

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use vram_exporter::config::keys::Key;
use vram_exporter::config::{ApiServer, Command, Config, Error, Problem, load};

use crate::choices::choices;

/// The longest line of a message in bytes: a key, its value, the allowed values and the origin.
const LONGEST_LINE: usize = 2_000;

/// The sources of a configuration.
#[derive(Debug, Default)]
struct Given {
    arguments: Vec<Vec<u8>>,
    variables: Vec<(Vec<u8>, Vec<u8>)>,
    /// The extension of the file's name, and the content.
    file: Option<(&'static str, Vec<u8>)>,
}

/// Loads a configuration. The first line of plain input names the source: `toml`, `yaml`, `flags` or `environment`.
/// True if the configuration is valid, or if only values and names are wrong.
pub fn config(data: &[u8]) -> bool {
    let given = choices(data).map_or_else(|| Given::of(data), |mut u| arbitrary::given(&mut u));
    match given.load(&[]) {
        Ok(command) => {
            assert_valid(command, &given);
            true
        }
        Err(error) => {
            assert_explained(&error);
            error.problems().iter().all(|problem| !matches!(problem, Problem::Unreadable { .. }))
        }
    }
}

impl Given {
    fn of(data: &[u8]) -> Self {
        let at = data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len());
        let (head, rest) = (&data[..at], data.get(at + 1..).unwrap_or_default());
        // Neither an argument nor a variable can contain a zero byte.
        let lines = || rest.split(|byte| *byte == b'\n').map(|line| line.iter().copied().filter(|b| *b != 0).collect());
        let variable = |line: Vec<u8>| {
            let at = line.iter().position(|byte| *byte == b'=').unwrap_or(line.len());
            (line[..at].to_vec(), line.get(at + 1..).unwrap_or_default().to_vec())
        };
        match head {
            b"flags" => Self { arguments: lines().collect(), ..Self::default() },
            b"environment" => Self { variables: lines().map(variable).collect(), ..Self::default() },
            b"yaml" => Self { file: Some(("yaml", rest.to_vec())), ..Self::default() },
            _ => Self { file: Some(("toml", rest.to_vec())), ..Self::default() },
        }
    }

    fn load(&self, more: &[&str]) -> Result<Command, Error> {
        let file = self.file.as_ref().map(|(end, text)| file(end, text));
        let file = file.map(|file| [OsString::from("--config.file"), file.into_os_string()]);
        let arguments = self.arguments.iter().cloned().map(OsString::from_vec);
        let program = OsString::from("vram-exporter");
        let typed = [program].into_iter().chain(file.into_iter().flatten()).chain(more.iter().map(OsString::from));
        let text = |bytes: &Vec<u8>| OsString::from_vec(bytes.clone());
        load(typed.chain(arguments), self.variables.iter().map(|(name, value)| (text(name), text(value))))
    }
}

/// The folder that contains the file. Each run writes the file again.
static FOLDER: LazyLock<tempfile::TempDir> =
    LazyLock::new(|| tempfile::tempdir().expect("a small file can be written"));

fn file(end: &str, text: &[u8]) -> PathBuf {
    let path = FOLDER.path().join(format!("config-{}.{end}", std::process::id()));
    std::fs::write(&path, text).expect("a small file can be written");
    path
}

/// Every problem has one line of bounded length, without control characters.
fn assert_explained(error: &Error) {
    assert!(!error.problems().is_empty(), "refused without a reason");
    let text = error.to_string();
    let lines: Vec<_> = text.lines().collect();
    assert!(lines.len() <= 21 && lines.len() == text.split('\n').count(), "{} lines", lines.len());
    for line in &lines {
        assert!(!line.trim().is_empty() && line.len() <= LONGEST_LINE, "{} bytes: {line:?}", line.len());
        assert!(!line.contains(char::is_control), "{line:?}");
    }
    for problem in error.problems() {
        match problem {
            Problem::Value { origin, key, value, why } => {
                assert!(Key::find(key).is_some() && !origin.is_empty() && !value.is_empty(), "{problem:?}");
                assert!(why.split_whitespace().count() >= 3, "does not say what is allowed: {problem}");
            }
            Problem::Unknown { origin, what, name, nearest } => {
                assert!(!origin.is_empty() && !what.is_empty() && name.len() > 1, "{problem:?}");
                assert!(nearest.as_ref().is_none_or(|nearest| !nearest.is_empty()), "{problem:?}");
            }
            Problem::Unreadable { origin, why } => {
                assert!(!origin.is_empty() && why.split_whitespace().count() >= 3, "{problem:?}");
            }
            Problem::Together { key, value, origin, why } => {
                assert!(Key::find(key).is_some() && !value.is_empty() && !origin.is_empty(), "{problem:?}");
                assert!(why.starts_with("must be "), "{problem:?}");
            }
        }
    }
}

/// A valid configuration is within its bounds, and the output of `--print-config` reads back as the same configuration.
fn assert_valid(command: Command, given: &Given) {
    let (Command::Run(config) | Command::Once(config)) = command else { return };
    assert_bounded(&config);
    let printed = given.load(&["--print-config"]);
    // `--once` and `--print-config` are mutually exclusive.
    let Ok(Command::PrintConfig(text)) = printed else {
        assert!(given.arguments.iter().any(|argument| argument.starts_with(b"--once")), "{printed:?}");
        return;
    };
    let again = Given { file: Some(("toml", text.clone().into_bytes())), ..Given::default() }.load(&[]);
    match again {
        Ok(Command::Run(again)) => assert_eq!(Config { demo: config.demo.clone(), ..again }, config, "{text}"),
        other => panic!("the printed configuration is not accepted: {other:?}\n{text}"),
    }
}

fn assert_bounded(config: &Config) {
    let Config {
        web,
        metrics,
        nvml,
        path,
        memory,
        process,
        telemetry,
        profiling,
        kubernetes,
        slurm: _,
        dcgm,
        allocator,
        recorder,
        otlp,
        log,
        demo: _,
    } = config;
    assert!(!web.listen_addresses.is_empty());
    let path_is_plain = web.telemetry_path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte));
    assert!(web.telemetry_path.starts_with('/') && path_is_plain, "{:?}", web.telemetry_path);
    assert!(!["/", "/healthz", "/readyz"].contains(&web.telemetry_path.as_str()));
    assert!(!web.telemetry_path.starts_with("/api/"), "{:?}", web.telemetry_path);
    let within = |value: Duration, least: u64, most: u64| {
        assert!((Duration::from_millis(least)..=Duration::from_secs(most)).contains(&value), "{value:?}");
    };
    let counts = [web.limits.max_requests, web.limits.max_connections, process.series_limit];
    assert!(counts.iter().all(|count| (1..=65_536).contains(count)), "{counts:?}");
    within(web.limits.read_timeout, 100, 600);
    within(web.limits.write_timeout, 100, 600);
    within(web.limits.idle_timeout, 100, 86_400);
    assert!(web.allowed_hosts.iter().all(|host| !host.is_empty()), "{web:?}");
    let names = metrics.include.iter().chain(&metrics.exclude);
    let is_plain = |name: &String| name.chars().all(|c| c.is_ascii_alphanumeric() || "_*?[]!-".contains(c));
    assert!(names.clone().all(|name| !name.is_empty() && is_plain(name)), "{metrics:?}");
    within(nvml.call_timeout, 10, 60);
    assert!((1.0..=1000.0).contains(&memory.rate) && (0.1..=memory.rate).contains(&memory.idle_rate), "{memory:?}");
    within(memory.peak_window, 1_000, 3_600);
    within(memory.stale_after, 100, 3_600);
    assert!(memory.stale_after.as_secs_f64() * memory.idle_rate >= 2.0 - 1e-6, "{memory:?}");
    within(process.interval, 100, 60);
    within(process.linger, 0, 86_400);
    within(telemetry.interval, 100, 3_600);
    within(telemetry.slow_interval, 100, 3_600);
    assert!(telemetry.slow_interval >= telemetry.interval);
    within(profiling.interval, 500, 60);
    within(kubernetes.pod_resources_interval, 1_000, 3_600);
    within(kubernetes.timeout, 100, 300);
    assert!(kubernetes.api_server.is_none() || kubernetes.node_name.is_some());
    let has_url = matches!(kubernetes.api_server, Some(ApiServer::At(_)));
    assert!(has_url || (kubernetes.token_file.is_none() && kubernetes.ca_file.is_none()), "{kubernetes:?}");
    assert!(dcgm.collectors_file.is_none() || !dcgm.listen_addresses.is_empty(), "{dcgm:?}");
    if let Some(ApiServer::At(url)) = &kubernetes.api_server {
        // A scheme may be in upper case.
        let url = url.to_ascii_lowercase();
        assert!(url.starts_with("https://") || url.starts_with("http://"), "{url}");
    }
    within(otlp.interval, 1_000, 3_600);
    within(otlp.timeout, 100, 300);
    assert!(otlp.endpoint.is_some() || (otlp.headers_file.is_none() && otlp.ca_file.is_none()), "{otlp:?}");
    if let Some(url) = &otlp.endpoint {
        assert!(otlp.interval <= memory.peak_window, "{otlp:?}");
        let url = url.to_ascii_lowercase();
        assert!(url.starts_with("https://") || url.starts_with("http://"), "{url}");
        assert!(!url.contains(['@', '?']) && !url.contains(char::is_control), "{url}");
    }
    assert!(recorder.max_memory_mib <= 4096 && (1..=100_000).contains(&recorder.max_files), "{recorder:?}");
    assert!((1..=1_048_576).contains(&recorder.max_disk_mib), "{recorder:?}");
    assert!(allocator.socket_mode <= 0o777, "{allocator:?}");
    assert!(
        allocator.socket_group.as_ref().is_none_or(|group| !group.is_empty() && !group.contains(' ')),
        "{allocator:?}"
    );
    assert!(!log.level.is_empty());
    let files = [
        nvml.library.as_ref(),
        path.passwd.as_ref(),
        kubernetes.pod_resources.as_ref(),
        dcgm.collectors_file.as_ref(),
        allocator.socket.as_ref(),
        recorder.path.as_ref(),
        otlp.headers_file.as_ref(),
        otlp.ca_file.as_ref(),
    ];
    for path in files.into_iter().flatten().chain([&path.procfs]) {
        let text = path.to_str().expect("every path is valid UTF-8");
        assert!(!text.is_empty() && !text.contains(char::is_control), "{text:?}");
    }
}
