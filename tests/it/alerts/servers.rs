//! A real Prometheus and a real Alertmanager on the loopback interface, each on a free port and in a temporary folder.
//! Each is killed when its value is dropped.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tempfile::TempDir;

use super::shipped::File;
use crate::harness::{PATIENCE, eventually};

/// The programs, by the names that Debian gives them.
pub(crate) const PROMETHEUS: &str = "prometheus";
pub(crate) const ALERTMANAGER: &str = "prometheus-alertmanager";

/// Whether a program is on the `PATH`.
pub(crate) fn is_there(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()))
}

/// A running server that logs the address on which it listens.
struct Server {
    child: Child,
    address: SocketAddr,
    log: Arc<Mutex<String>>,
}

impl Server {
    fn start(mut command: Command) -> Self {
        command.arg("--web.listen-address=127.0.0.1:0").stdin(Stdio::null()).stdout(Stdio::null());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let (lines, kept) = (BufReader::new(child.stderr.take().unwrap()), log.clone());
        std::thread::spawn(move || {
            for line in lines.lines().map_while(Result::ok) {
                let mut kept = kept.lock().unwrap();
                kept.push_str(&line);
                kept.push('\n');
            }
        });
        // From here on, the child is killed when `server` is dropped, even if the wait below fails.
        let mut server = Self { child, address: SocketAddr::from(([127, 0, 0, 1], 0)), log };
        server.address = eventually("the log names the address", || {
            let ended = server.child.try_wait().unwrap();
            assert!(ended.is_none(), "the server ended: {}", server.log.lock().unwrap());
            let log = server.log.lock().unwrap();
            let line = log.lines().find(|line| line.contains("\"Listening on\""))?;
            line.split("address=").nth(1)?.split_whitespace().next()?.parse().ok()
        });
        eventually("the server is ready", || get(server.address, "/-/ready").filter(|(status, _)| *status == 200));
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends one request over a new connection; returns the status and body. Uses HTTP/1.0 so that the body is not chunked.
fn get(address: SocketAddr, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: test\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    Some((head.split_whitespace().nth(1)?.parse().ok()?, body.to_owned()))
}

/// Alertmanager, which immediately notifies a webhook of every alert and of its end.
pub(crate) struct Alertmanager {
    server: Server,
    _folder: TempDir,
}

impl Alertmanager {
    pub(crate) fn start(webhook: SocketAddr) -> Self {
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
      - url: http://{webhook}/
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
        let (status, body) = get(self.server.address, path).expect("Prometheus answers");
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str::<Value>(&body).unwrap()["data"].clone()
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
