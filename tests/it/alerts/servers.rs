//! A real Prometheus and a real Alertmanager on the loopback interface, each on a free port and in a temporary folder.
//! Each is killed when its value is dropped.

use std::fs;
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use super::shipped::File;
use crate::harness::{Answer, Logging, until};

/// The programs, by the names that Debian gives them.
pub(crate) const PROMETHEUS: &str = "prometheus";
pub(crate) const ALERTMANAGER: &str = "prometheus-alertmanager";

/// Whether a program is on the `PATH`.
pub(crate) fn is_there(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()))
}

/// A running server that logs the address on which it listens.
struct Server {
    address: SocketAddr,
    _running: Logging,
}

impl Server {
    fn start(mut command: Command) -> Self {
        command.arg("--web.listen-address=127.0.0.1:0").stdin(Stdio::null()).stdout(Stdio::null());
        let mut running = Logging::start(&mut command);
        let address = running.address("\"Listening on\"");
        until("the server is ready", || Answer::get(address, "/-/ready").is_ok_and(|answer| answer.status == 200));
        Self { address, _running: running }
    }
}

/// Alertmanager, which immediately notifies a webhook of every alert and of its end.
pub(crate) struct Alertmanager {
    server: Server,
    _folder: TempDir,
}

impl Alertmanager {
    pub(crate) fn start(webhook: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("alertmanager.yml");
        let config = format!(
            r#"
route:
  receiver: test
  group_by: ["..."]
  group_wait: 0s
  group_interval: 250ms
  repeat_interval: 1h
receivers:
  - name: test
    webhook_configs:
      - url: {webhook}/
        send_resolved: true
"#
        );
        fs::write(&file, config).unwrap();
        let mut command = Command::new(ALERTMANAGER);
        command.arg(format!("--config.file={}", file.display()));
        command.arg(format!("--storage.path={}", folder.path().join("data").display()));
        // No cluster: it listens only on the loopback interface.
        command.arg("--cluster.listen-address=");
        Self { server: Server::start(command), _folder: folder }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.server.address
    }
}

/// Prometheus.
pub(crate) struct Prometheus {
    server: Server,
    _folder: TempDir,
}

impl Prometheus {
    /// Starts it with this configuration and with these rule files, which are put into the `rules` folder.
    pub(crate) fn start(config: &str, rules: &[File]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("rules")).unwrap();
        for (name, content) in rules {
            fs::write(folder.path().join("rules").join(name), content).unwrap();
        }
        fs::write(folder.path().join("prometheus.yml"), config).unwrap();
        let mut command = Command::new(PROMETHEUS);
        command.current_dir(folder.path());
        command.args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"]);
        Self { server: Server::start(command), _folder: folder }
    }

    /// A response from the API.
    ///
    /// # Panics
    /// If Prometheus refuses the query.
    pub(crate) fn api(&self, path: &str) -> Value {
        let answer = Answer::get(self.server.address, path).expect("Prometheus answers");
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        serde_json::from_str::<Value>(&answer.body).unwrap()["data"].clone()
    }

    /// The samples of a range vector of at most one series: Unix time and value, in order.
    ///
    /// # Panics
    /// If there are several series.
    pub(crate) fn samples(&self, query: &str) -> Vec<(f64, f64)> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let answer = self.api(&format!("/api/v1/query?query={encoded}"));
        let series = answer["result"].as_array().unwrap();
        assert!(series.len() < 2, "several series: {query}");
        let values = series.first().map_or(&[][..], |series| series["values"].as_array().unwrap());
        let pair = |pair: &Value| (pair[0].as_f64().unwrap(), pair[1].as_str().unwrap().parse().unwrap());
        values.iter().map(pair).collect()
    }
}
