//! Where and how to push.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use crate::config::OtlpNames;

/// Where and how to push.
#[derive(Clone)]
pub struct Settings {
    /// The receiver's URL, `http://` or `https://`, without a user, a password, a query or a fragment.
    pub endpoint: String,
    /// The time between two pushes.
    pub interval: Duration,
    /// The maximum time for one attempt.
    pub timeout: Duration,
    /// Whether requests are compressed.
    pub gzip: bool,
    /// A file with headers, which may be secret.
    pub headers_file: Option<PathBuf>,
    /// The value of `OTEL_EXPORTER_OTLP_HEADERS`, which may be secret.
    pub headers: Option<String>,
    /// A PEM file with the certificates to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// Which names the metrics have.
    pub names: OtlpNames,
    /// The attributes that are known about the exporter and its machine.
    pub resource: Vec<(&'static str, String)>,
    /// The value of `OTEL_RESOURCE_ATTRIBUTES`: attributes in addition to `resource`, which it overrides.
    pub resource_attributes: Option<String>,
    /// The value of `OTEL_SERVICE_NAME`, which overrides the service's name.
    pub service_name: Option<String>,
    /// When the exporter began to count.
    pub started: SystemTime,
}

#[cfg(test)]
impl Settings {
    /// The defaults of the configuration, for tests of this module.
    pub(super) fn for_tests(endpoint: &str) -> Self {
        Self {
            endpoint: endpoint.to_owned(),
            interval: Duration::from_secs(30),
            timeout: Duration::from_secs(10),
            gzip: true,
            headers_file: None,
            headers: None,
            ca_file: None,
            names: OtlpNames::Both,
            resource: Vec::new(),
            resource_attributes: None,
            service_name: None,
            started: SystemTime::now(),
        }
    }
}
