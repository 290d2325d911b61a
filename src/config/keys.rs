//! The one table of keys. Flags, environment variables, file keys, defaults, help, the printed configuration and the
//! documentation are all made from it.

use std::time::Duration;

use super::setting::{Kind, Setting};

/// One key of the configuration.
#[derive(Debug)]
pub struct Key {
    /// The path in a file and, after `--`, the flag: `memory.rate`.
    pub name: &'static str,
    /// The default as text, absent where the key is not set by default.
    pub default: Option<&'static str>,
    /// What the value must be.
    pub kind: Kind,
    /// What the help calls the value.
    pub value_name: &'static str,
    /// What it does, with its unit.
    pub help: &'static str,
}

/// The sections in the order in which they are shown: the first part of a key's name, and a heading.
pub const SECTIONS: &[(&str, &str)] = &[
    ("web", "Web server"),
    ("nvml", "NVIDIA driver library"),
    ("path", "Host files"),
    ("memory", "GPU memory"),
    ("process", "GPU processes"),
    ("telemetry", "GPU telemetry"),
    ("kubernetes", "Kubernetes"),
    ("log", "Log"),
];

/// Every key, by section.
pub const KEYS: &[Key] = &[
    Key {
        name: "web.listen-address",
        default: Some(":9836"),
        kind: Kind::Addresses,
        value_name: "ADDRESS",
        help: "Address to listen on: \":9836\" (all interfaces, IPv6 and IPv4), \"localhost:9836\" (127.0.0.1), \"[::1]:9836\", or \
               a socket file, \"unix:/run/vram-exporter.sock\". May be several: a list in a file, the flag repeated, or separated by \
               commas. Port 0 takes a free port.",
    },
    Key {
        name: "web.systemd-socket",
        default: Some("false"),
        kind: Kind::Switch,
        value_name: "BOOL",
        help: "Take the sockets that the service manager hands over (socket activation) instead of web.listen-address.",
    },
    Key {
        name: "web.health-address",
        default: None,
        kind: Kind::Addresses,
        value_name: "ADDRESS",
        help: "Address where /healthz and /readyz alone are told as well, without TLS and password: for probes that have no \
               client certificate. Not set: nowhere else.",
    },
    Key {
        name: "web.config-file",
        default: None,
        kind: Kind::Path,
        value_name: "FILE",
        help: "A web-config file: TLS, client certificates, passwords, headers and a rate limit (docs/web-config.md). Read again \
               as it changes, and on SIGHUP. Not set: plain HTTP for everybody.",
    },
    Key {
        name: "web.telemetry-path",
        default: Some("/metrics"),
        kind: Kind::UrlPath,
        value_name: "PATH",
        help: "Path under which the metrics are served; not /, /healthz or /readyz.",
    },
    Key {
        name: "web.max-requests",
        default: Some("40"),
        kind: Kind::Count { min: 1, max: 65_536 },
        value_name: "COUNT",
        help: "Most requests that are answered at once; further ones get 503. Health is always answered.",
    },
    Key {
        name: "web.max-connections",
        default: Some("512"),
        kind: Kind::Count { min: 1, max: 65_536 },
        value_name: "COUNT",
        help: "Most connections open at once. For a further one, the one that has rested or owed a request longest is closed.",
    },
    Key {
        name: "web.read-timeout",
        default: Some("10s"),
        kind: Kind::Duration { min: Duration::from_millis(100), max: Duration::from_secs(600) },
        value_name: "DURATION",
        help: "How long a client may take to send a request, from connecting or from its first byte.",
    },
    Key {
        name: "web.write-timeout",
        default: Some("30s"),
        kind: Kind::Duration { min: Duration::from_millis(100), max: Duration::from_secs(600) },
        value_name: "DURATION",
        help: "How long an answer may take to leave, until its client has taken all of it.",
    },
    Key {
        name: "web.idle-timeout",
        default: Some("5m"),
        kind: Kind::Duration { min: Duration::from_millis(100), max: Duration::from_secs(86_400) },
        value_name: "DURATION",
        help: "How long a connection may rest between two requests. Longer than the scrape interval, or each scrape connects anew.",
    },
    Key {
        name: "nvml.library",
        default: None,
        kind: Kind::Path,
        value_name: "FILE",
        help: "The driver's library, libnvidia-ml.so.1. Not set: it is searched for where drivers install it.",
    },
    Key {
        name: "nvml.call-timeout",
        default: Some("2s"),
        kind: Kind::Duration { min: Duration::from_millis(10), max: Duration::from_secs(60) },
        value_name: "DURATION",
        help: "A driver call that takes longer marks its GPU as stalled.",
    },
    Key {
        name: "nvml.release-duration",
        default: Some("5m"),
        kind: Kind::Duration { min: Duration::from_secs(1), max: Duration::from_secs(86_400) },
        value_name: "DURATION",
        help: "How long SIGUSR1 makes the exporter close the driver, so that it can be replaced. A second SIGUSR1 opens it at once.",
    },
    Key {
        name: "path.procfs",
        default: Some("/proc"),
        kind: Kind::Path,
        value_name: "DIR",
        help: "Where procfs is mounted: that of the exporter's own pid namespace, so the host's only with the host's.",
    },
    Key {
        name: "path.passwd",
        default: None,
        kind: Kind::Path,
        value_name: "FILE",
        help: "A passwd file to read user names from. Not set: the system is asked.",
    },
    Key {
        name: "memory.rate",
        default: Some("100"),
        kind: Kind::Number { min: 1.0, max: 1000.0 },
        value_name: "HZ",
        help: "Samples of GPU memory a second. A peak shorter than the time between two samples can be missed.",
    },
    Key {
        name: "memory.idle-rate",
        default: Some("1"),
        kind: Kind::Number { min: 0.1, max: 1000.0 },
        value_name: "HZ",
        help: "Samples a second while no process uses any GPU; at most memory.rate.",
    },
    Key {
        name: "memory.peak-window",
        default: Some("60s"),
        kind: Kind::Duration { min: Duration::from_secs(1), max: Duration::from_secs(3600) },
        value_name: "DURATION",
        help: "Length of the sliding window of the window peaks. No shorter than the scrape interval, or peaks are lost.",
    },
    Key {
        name: "memory.stale-after",
        default: Some("5s"),
        kind: Kind::Duration { min: Duration::from_millis(100), max: Duration::from_secs(3600) },
        value_name: "DURATION",
        help: "A GPU without a good sample for so long loses its memory values. At least two periods of memory.idle-rate.",
    },
    Key {
        name: "process.interval",
        default: Some("1s"),
        kind: Kind::Duration { min: Duration::from_millis(100), max: Duration::from_secs(60) },
        value_name: "DURATION",
        help: "Longest time between two readings of the processes; a change of memory asks for one at once.",
    },
    Key {
        name: "process.linger",
        default: Some("5m"),
        kind: Kind::Duration { min: Duration::ZERO, max: Duration::from_secs(86_400) },
        value_name: "DURATION",
        help: "How long the peaks of an ended process stay after its last peak window.",
    },
    Key {
        name: "process.series-limit",
        default: Some("256"),
        kind: Kind::Count { min: 1, max: 65_536 },
        value_name: "COUNT",
        help: "Most processes shown for each GPU; those with the most memory come first.",
    },
    Key {
        name: "process.series",
        default: Some("true"),
        kind: Kind::Switch,
        value_name: "BOOL",
        help: "Show single processes. Without them the workloads stay, whose number does not grow with short processes.",
    },
    Key {
        name: "process.command-line",
        default: Some("false"),
        kind: Kind::Switch,
        value_name: "BOOL",
        help: "Show each process' command line. Command lines may hold secrets, and whoever reads the metrics sees them.",
    },
    Key {
        name: "telemetry.interval",
        default: Some("1s"),
        kind: Kind::Duration { min: Duration::from_millis(100), max: Duration::from_secs(3600) },
        value_name: "DURATION",
        help: "Time between two readings of temperature, power, clocks and what else is cheap to read.",
    },
    Key {
        name: "telemetry.slow-interval",
        default: Some("15s"),
        kind: Kind::Duration { min: Duration::from_millis(100), max: Duration::from_secs(3600) },
        value_name: "DURATION",
        help: "Time between two readings of what is dear to read; at least telemetry.interval.",
    },
    Key {
        name: "telemetry.energy",
        default: Some("false"),
        kind: Kind::Switch,
        value_name: "BOOL",
        help: "Read the energy counter. Its call can hold the driver's lock for many milliseconds.",
    },
    Key {
        name: "kubernetes.node-name",
        default: None,
        kind: Kind::NodeName,
        value_name: "NAME",
        help: "This node's name in the cluster, as in spec.nodeName of its pods. Needed with kubernetes.api-server.",
    },
    Key {
        name: "kubernetes.api-server",
        default: None,
        kind: Kind::ApiServer,
        value_name: "URL",
        help: "The API server that names pods: \"in-cluster\" (the service account of the exporter's pod) or a URL such as \
               \"https://10.0.0.1:6443\". It is asked for the pods of this node only. Not set: nobody is asked.",
    },
    Key {
        name: "kubernetes.token-file",
        default: None,
        kind: Kind::Path,
        value_name: "FILE",
        help: "A bearer token for the API server, read again as it changes. Not with \"in-cluster\".",
    },
    Key {
        name: "kubernetes.ca-file",
        default: None,
        kind: Kind::Path,
        value_name: "FILE",
        help: "The certificates to trust for the API server, in PEM. Not with \"in-cluster\".",
    },
    Key {
        name: "kubernetes.pod-resources",
        default: None,
        kind: Kind::Path,
        value_name: "SOCKET",
        help: "The kubelet's socket that tells which GPU was given to which container, as a rule \
               /var/lib/kubelet/pod-resources/kubelet.sock. Not set: nobody is asked.",
    },
    Key {
        name: "kubernetes.pod-resources-interval",
        default: Some("10s"),
        kind: Kind::Duration { min: Duration::from_secs(1), max: Duration::from_secs(3600) },
        value_name: "DURATION",
        help: "Time between two questions to the kubelet.",
    },
    Key {
        name: "kubernetes.timeout",
        default: Some("5s"),
        kind: Kind::Duration { min: Duration::from_millis(100), max: Duration::from_secs(300) },
        value_name: "DURATION",
        help: "How long the kubelet or the API server may take to answer.",
    },
    Key {
        name: "log.level",
        default: Some("info"),
        kind: Kind::LogFilter,
        value_name: "LEVEL",
        help: "What is logged on standard error: error, warn, info, debug, trace or off, or levels by target such as \
               \"info,vram_exporter=debug\".",
    },
    Key {
        name: "log.format",
        default: Some("logfmt"),
        kind: Kind::Choice(&["logfmt", "json"]),
        value_name: "FORMAT",
        help: "How a log line looks: key=value pairs, or one JSON object a line.",
    },
];

impl Key {
    /// The key of that name.
    pub fn find(name: &str) -> Option<&'static Self> {
        KEYS.iter().find(|key| key.name == name)
    }

    /// The section, and the name within it.
    pub fn parts(&self) -> (&'static str, &'static str) {
        self.name.split_once('.').expect("every key in the table has a section; a test holds this")
    }

    /// The environment variable: `VRAM_EXPORTER_MEMORY_RATE`.
    pub fn variable(&self) -> String {
        format!("{}{}", super::environment::PREFIX, self.name.replace(['.', '-'], "_").to_uppercase())
    }

    /// The help, and a sentence on what is allowed where the help does not say it already.
    pub fn full_help(&self) -> String {
        match self.kind {
            Kind::Duration { .. } | Kind::Number { .. } | Kind::Count { .. } | Kind::Choice(_) => {
                format!("{} Value: {}.", self.help, self.kind.allowed())
            }
            _ => self.help.to_owned(),
        }
    }

    /// The default, read.
    pub fn default_setting(&self) -> Setting {
        match self.default {
            None => Setting::Unset,
            Some(text) => self.kind.read_text(text).expect("every default is a good value; a test holds this"),
        }
    }

    /// Reads the text of a flag or a variable. Empty text unsets a key that has no default.
    pub fn read_text(&self, text: &str) -> Result<Setting, String> {
        if text.is_empty() && self.default.is_none() { Ok(Setting::Unset) } else { self.kind.read_text(text) }
    }

    /// Reads a value of a file. Empty text, or YAML's null, unsets a key that has no default.
    pub fn read_value(&self, value: &::config::ValueKind) -> Result<Setting, String> {
        match value {
            ::config::ValueKind::Nil if self.default.is_none() => Ok(Setting::Unset),
            ::config::ValueKind::String(text) if text.is_empty() => self.read_text(text),
            other => self.kind.read_value(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sound() {
        for (index, key) in KEYS.iter().enumerate() {
            let (section, leaf) = key.parts();
            assert!(SECTIONS.iter().any(|(name, _)| *name == section), "{} has no section", key.name);
            assert!(!leaf.contains('.') && !key.help.is_empty() && key.help.ends_with('.'), "{}", key.name);
            assert!(KEYS[..index].iter().all(|other| other.variable() != key.variable()), "{} stands twice", key.name);
            assert_eq!(key.default.is_none(), key.default_setting() == Setting::Unset);
        }
        for (section, _) in SECTIONS {
            assert!(KEYS.iter().any(|key| key.parts().0 == *section), "{section} has no key");
        }
    }

    #[test]
    fn a_setting_survives_its_value() {
        for key in KEYS {
            let setting = key.default_setting();
            assert_eq!(key.read_value(&setting.to_value()), Ok(setting), "{}", key.name);
        }
    }
}
