//! What holds of a configuration whatever is given: it is whole and within its bounds, or it is refused in words that name
//! what is wrong and what is allowed.

#![allow(clippy::panic, reason = "a trial panics where what must hold does not")]

mod made;

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use super::keys::Key;
use super::{ApiServer, Command, Config, Error, Problem, load};
use crate::trials::Pieces;

/// The longest line of a message: a name, a value, what is allowed, and where it was given.
const LONGEST_LINE: usize = 2_000;

/// What a user gives.
#[derive(Debug, Default)]
struct Given {
    arguments: Vec<Vec<u8>>,
    variables: Vec<(Vec<u8>, Vec<u8>)>,
    /// The end of the file's name, and what is in it.
    file: Option<(&'static str, Vec<u8>)>,
}

/// Reads a configuration. Of bytes as they are, the first line says what the others are: `toml`, `yaml`, `flags` or
/// `environment`. True where it is good, or bad by nothing but its values and names.
pub fn config(data: &[u8]) -> bool {
    let given = Pieces::of(data).map_or_else(|| Given::of(data), |mut pieces| made::given(&mut pieces));
    match given.load(&[]) {
        Ok(command) => {
            assert_right(command, &given);
            true
        }
        Err(error) => {
            assert_told(&error);
            error.problems().iter().all(|problem| !matches!(problem, Problem::Unreadable { .. }))
        }
    }
}

impl Given {
    fn of(data: &[u8]) -> Self {
        let at = data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len());
        let (head, rest) = (&data[..at], data.get(at + 1..).unwrap_or_default());
        // Neither an argument nor a variable can hold a zero byte.
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

/// Where the files of the trials lie; made once, written anew each time.
static FOLDER: LazyLock<tempfile::TempDir> =
    LazyLock::new(|| tempfile::tempdir().expect("there is room for a small file"));

fn file(end: &str, text: &[u8]) -> PathBuf {
    let path = FOLDER.path().join(format!("config-{}.{end}", std::process::id()));
    std::fs::write(&path, text).expect("there is room for a small file");
    path
}

/// Every problem is said on one line, of bounded length, in words.
fn assert_told(error: &Error) {
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
                assert!(why.split_whitespace().count() >= 3, "no way out: {problem}");
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

/// What is good is within its bounds, and reads back the same from what `--print-config` prints.
fn assert_right(command: Command, given: &Given) {
    let (Command::Run(config) | Command::Once(config)) = command else { return };
    assert_bounded(&config);
    let printed = given.load(&["--print-config"]);
    // Two actions exclude each other.
    let Ok(Command::PrintConfig(text)) = printed else {
        assert!(given.arguments.iter().any(|argument| argument.starts_with(b"--once")), "{printed:?}");
        return;
    };
    let again = Given { file: Some(("toml", text.clone().into_bytes())), ..Given::default() }.load(&[]);
    match again {
        Ok(Command::Run(again)) => assert_eq!(Config { demo: config.demo.clone(), ..again }, config, "{text}"),
        other => panic!("what is printed is not read back: {other:?}\n{text}"),
    }
}

fn assert_bounded(config: &Config) {
    let Config { web, nvml, path, memory, process, telemetry, kubernetes, log, demo: _ } = config;
    assert!(!web.listen_addresses.is_empty());
    let path_is_plain = web.telemetry_path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte));
    assert!(web.telemetry_path.starts_with('/') && path_is_plain, "{:?}", web.telemetry_path);
    assert!(!["/", "/healthz", "/readyz"].contains(&web.telemetry_path.as_str()));
    let within = |value: Duration, least: u64, most: u64| {
        assert!((Duration::from_millis(least)..=Duration::from_secs(most)).contains(&value), "{value:?}");
    };
    let counts = [web.max_requests, web.max_connections, process.series_limit];
    assert!(counts.iter().all(|count| (1..=65_536).contains(count)), "{counts:?}");
    within(web.read_timeout, 100, 600);
    within(web.write_timeout, 100, 600);
    within(web.idle_timeout, 100, 86_400);
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
    within(kubernetes.pod_resources_interval, 1_000, 3_600);
    within(kubernetes.timeout, 100, 300);
    assert!(kubernetes.api_server.is_none() || kubernetes.node_name.is_some());
    if let Some(ApiServer::At { url, .. }) = &kubernetes.api_server {
        // Upper case is the same scheme.
        let url = url.to_ascii_lowercase();
        assert!(url.starts_with("https://") || url.starts_with("http://"), "{url}");
    }
    assert!(!log.level.is_empty());
    let paths = [nvml.library.as_ref(), Some(&path.procfs), path.passwd.as_ref(), kubernetes.pod_resources.as_ref()];
    for path in paths.into_iter().flatten() {
        let text = path.to_str().expect("a path of the configuration is text");
        assert!(!text.is_empty() && !text.contains(char::is_control), "{text:?}");
    }
}

#[cfg(test)]
mod tests {
    use crate::trials::drive;

    #[test]
    fn a_configuration_is_good_or_says_why_not() {
        assert!(drive(env!("CARGO_MANIFEST_DIR"), "config", 300, super::config) > 100);
    }
}
