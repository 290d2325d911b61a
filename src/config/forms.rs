//! The text formats that some keys require: a path on the web server, a log filter, a node, a server. Pure functions;
//! an error states what is allowed.

use std::net::IpAddr;

use tracing_subscriber::filter::LevelFilter;

use super::model::ApiServer;
use crate::server_url::ServerUrl;

/// The value of `kubernetes.api-server` inside a pod that has a service account.
const IN_CLUSTER: &str = "in-cluster";

/// The longest node name that Kubernetes allows.
const LONGEST_NODE_NAME: usize = 253;

/// The longest key of a label in bytes, without its domain.
const LONGEST_LABEL_NAME: usize = 63;

/// Paths on the web server that `web.telemetry-path` may not use.
const TAKEN_PATHS: [&str; 6] = ["/", "/healthz", "/readyz", "/runbook", "/page.js", "/page.css"];
/// What the paths of the page's other scripts begin and end with.
const SCRIPTS: (&str, &str) = ("/page-", ".js");
/// The prefix of the API's paths.
const API: &str = "/api/";

const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];

/// Whether `text` can be the path of the metrics: unreserved characters only, since braces, colons and asterisks have a
/// special meaning for the router, and a query or an escape would never match.
pub(super) fn check_url_path(text: &str) -> Result<(), String> {
    let (begin, end) = SCRIPTS;
    let is_script = text.starts_with(begin) && text.ends_with(end);
    if TAKEN_PATHS.contains(&text) || is_script || text.starts_with(API) {
        let taken = TAKEN_PATHS.join(", ");
        return Err(format!("is one of the exporter's other paths ({taken}, {begin}…{end}, {API}…); choose another"));
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "/-._~".contains(c);
    if !text.starts_with('/') || !text.chars().all(plain) || text.split('/').any(|part| part == "." || part == "..") {
        return Err("must begin with / and hold only ASCII letters, digits and - . _ ~ /, such as \"/metrics\"".into());
    }
    Ok(())
}

/// Reads a level, or levels by target, for the log's filter. A bare target is refused, because a mistyped level would
/// be accepted as a target. Spans and fields are refused too, because the exporter does not have any.
pub(super) fn log_filter(text: &str) -> Result<String, String> {
    let read = |part: &str| match part.split_once('=') {
        Some((target, level)) => {
            let plain = !target.is_empty() && !target.contains(['[', ']', '{', '}', '"']);
            let level = filter_level(level);
            (plain && !level.is_empty() && level.parse::<LevelFilter>().is_ok()).then(|| format!("{target}={level}"))
        }
        None => {
            let level = filter_level(part);
            LEVELS.iter().any(|known| known.eq_ignore_ascii_case(level)).then(|| level.to_owned())
        }
    };
    let parts: Option<Vec<String>> = text.split(',').map(str::trim).map(read).collect();
    parts.map(|parts| parts.join(",")).ok_or_else(|| {
        format!("must be a level ({}) or levels by target, such as \"info,vram_exporter=debug\"", LEVELS.join(", "))
    })
}

/// The filter's own name for a level: other programs use `warning` instead of `warn`.
fn filter_level(text: &str) -> &str {
    if text.eq_ignore_ascii_case("warning") { "warn" } else { text }
}

/// Whether `text` can be the name of a node. Kubernetes allows no character that has a special meaning in a selector.
pub(super) fn check_node_name(text: &str) -> Result<(), String> {
    let end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    let whole = end(text.chars().next()) && end(text.chars().last()) && text.len() <= LONGEST_NODE_NAME;
    if whole && text.chars().all(plain) {
        return Ok(());
    }
    Err("must be a node's name: lower-case letters, digits, - and ., as `kubectl get nodes` shows it".to_owned())
}

/// Whether `text` can be the key of a Kubernetes label: a name, and before it perhaps a domain and a slash.
pub(super) fn is_label_key(text: &str) -> bool {
    let (domain, name) = text.split_once('/').map_or((None, text), |(domain, name)| (Some(domain), name));
    let end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let is_name = name.len() <= LONGEST_LABEL_NAME && end(name.chars().next()) && end(name.chars().last());
    is_name && name.chars().all(plain) && domain.is_none_or(|domain| check_node_name(domain).is_ok())
}

/// The name in the metrics of the label with this key, as kube-state-metrics forms it: in lower case, with an underscore for
/// each character that a name cannot have and before a capital letter that follows another letter or a digit.
pub(crate) fn label_name(key: &str) -> String {
    let mut name = "label_".to_owned();
    let mut before = '_';
    for c in key.chars() {
        if c.is_ascii_uppercase() && (before.is_ascii_lowercase() || before.is_ascii_digit()) {
            name.push('_');
        }
        name.push(if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' });
        before = c;
    }
    name
}

/// Permissions in octal, up to 0777.
pub(super) fn octal(text: &str) -> Option<u32> {
    let plain = !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit());
    u32::from_str_radix(text, 8).ok().filter(|&mode| plain && mode <= 0o777)
}

/// Whether `text` can be the name or the number of a group.
pub(super) fn is_group(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-$\\@".contains(c);
    !text.is_empty() && text.len() <= LONGEST_NODE_NAME && !text.starts_with('-') && text.chars().all(plain)
}

/// Reads [`IN_CLUSTER`] or the URL of an API server. A token is sent only over TLS, or within this machine.
pub(super) fn api_server(text: &str) -> Result<ApiServer, String> {
    if text == IN_CLUSTER {
        return Ok(ApiServer::InCluster);
    }
    let example = "https://10.0.0.1:6443";
    let url = ServerUrl::parse(text, example, "kubernetes.token-file")
        .map_err(|why| format!("{why}, or be \"{IN_CLUSTER}\""))?;
    if url.path() != "/" {
        return Err(format!("must be \"{IN_CLUSTER}\" or a URL without a path, such as \"{example}\""));
    }
    let is_local =
        || url.host() == "localhost" || url.host().parse().is_ok_and(|address: IpAddr| address.is_loopback());
    if url.is_https() || is_local() {
        return Ok(ApiServer::At(text.to_owned()));
    }
    Err("http:// is for a proxy on this machine only; give an https:// URL".to_owned())
}

/// Whether `text` can be the URL of an OTLP/HTTP receiver. A secret belongs in a header, because the URL is shown in logs.
pub(super) fn check_otlp_endpoint(text: &str) -> Result<(), String> {
    ServerUrl::parse(text, "http://localhost:4318", "otlp.headers-file").map(drop)
}

/// Whether `text` can be a path in the file system.
pub(super) fn is_path(text: &str) -> bool {
    !text.is_empty() && !text.contains(char::is_control)
}

/// Whether the text is the name of a metric family, possibly with wildcards.
pub(super) fn is_glob(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_*?[]!-".contains(c);
    // Two asterisks have another meaning in paths.
    !text.is_empty() && text.chars().all(plain) && !text.contains("**") && glob::Pattern::new(text).is_ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::server_url::samples::{REFUSED, SECRET};

    #[test]
    fn names_of_families_may_contain_wildcards() {
        for good in ["gpu_up", "gpu_*", "*", "gpu_memory_????_bytes", "[a-z]*", "[!g]*", "DCGM_FI_DEV_GPU_TEMP"] {
            assert!(is_glob(good), "{good}");
        }
        for bad in ["", "gpu up", "gpu_{a,b}", "[", "[]", "a**b", "/gpu", "gpu.*", "gpu\n", "ä"] {
            assert!(!is_glob(bad), "{bad:?}");
        }
    }

    #[test]
    fn keys_of_labels_are_those_of_kubernetes() {
        let long = "a".repeat(LONGEST_LABEL_NAME);
        for good in ["team", "a", "0", "app.kubernetes.io/name", "Team_x.y-z", "a/B", &long] {
            assert!(is_label_key(good), "{good}");
        }
        let longer = format!("{long}a");
        for bad in ["", "/", "a/", "/a", "a/b/c", "-a", "a-", "A.example/x", "te am", "team=x", "t\"", "ä", &longer] {
            assert!(!is_label_key(bad), "{bad:?}");
        }
    }

    #[test]
    fn a_label_has_the_name_that_kube_state_metrics_gives_it() {
        let names = [
            ("team", "label_team"),
            ("app.kubernetes.io/part-of", "label_app_kubernetes_io_part_of"),
            ("costCenter2B", "label_cost_center2_b"),
            ("GPUTeam", "label_gputeam"),
        ];
        for (key, name) in names {
            assert_eq!(label_name(key), name);
        }
    }

    #[test]
    fn url_paths_cannot_confuse_the_router() {
        for good in ["/metrics", "/a/b-c_d.e~f", "/metrics/", "//metrics"] {
            assert_eq!(check_url_path(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            "/",
            "/healthz",
            "/readyz",
            "/runbook",
            "/page.js",
            "/page-charts.js",
            "/page.css",
            "/api/v1/gpus",
            "metrics",
            "/m?x=1",
            "/m#x",
            "/{m}",
            "/:m",
            "/*m",
            "/a b",
            "/\n",
            "/%2f",
            "/ä",
            "/../m",
            "/.",
        ] {
            assert!(check_url_path(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn log_filters_are_levels_or_levels_by_target() {
        for good in ["info", "WARN", "off", "warn,vram_exporter=debug", "vram_exporter::lanes=trace", "warn, hyper=5"] {
            assert_eq!(log_filter(good), Ok(good.replace(' ', "")), "{good}");
        }
        assert_eq!(log_filter("Warning,vram_exporter=warning"), Ok("warn,vram_exporter=warn".to_owned()));
        for bad in [
            "",
            "inof",
            "vram_exporter",
            "info,",
            "vram_exporter=loud",
            "vram_exporter=",
            "info,,warn",
            "=",
            "=info",
            "a=b=info",
            "[span]=debug",
            "hyper[{id}]=debug",
        ] {
            assert!(log_filter(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn node_names_hold_nothing_that_a_selector_reads() {
        for good in ["gpu-1", "a", "ip-10-0-0-1.eu-west-1.compute.internal", "0x"] {
            assert_eq!(check_node_name(good), Ok(()), "{good}");
        }
        for bad in ["", "-a", "a-", ".a", "A", "a,b", "a=b", "a b", "a\n", "ä", &"a".repeat(254)] {
            assert!(check_node_name(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_url_of_a_receiver_holds_no_secret() {
        for good in [
            "http://localhost:4318",
            "https://otlp.example/otlp/",
            "http://[::1]:9090/api/v1/otlp",
            "http://prometheus:9090/api/v1/otlp/v1/metrics",
        ] {
            assert_eq!(check_otlp_endpoint(good), Ok(()), "{good}");
        }
        for bad in REFUSED {
            assert!(check_otlp_endpoint(bad).unwrap_err().contains("such as \"http://localhost:4318\""), "{bad:?}");
        }
        for bad in SECRET {
            let why = check_otlp_endpoint(bad).unwrap_err();
            assert!(why.starts_with("must ") && !why.contains("s3"), "{bad:?}: {why}");
        }
    }

    #[test]
    fn a_token_leaves_the_machine_over_tls_only() {
        for good in
            ["in-cluster", "https://10.0.0.1:6443", "https://[fd00::1]", "https://k8s.example", "http://127.0.0.1:8001"]
        {
            let server = if good == IN_CLUSTER { ApiServer::InCluster } else { ApiServer::At(good.to_owned()) };
            assert_eq!(api_server(good), Ok(server), "{good}");
        }
        let others = ["http://10.0.0.1:8080", "http://[fd00::1]:80", "https://a/b", "http://127.0.0.1.example"];
        for bad in REFUSED.into_iter().chain(SECRET).chain(others) {
            let why = api_server(bad).unwrap_err();
            assert!(why.contains("https://") || why.contains(IN_CLUSTER), "{bad:?}: {why}");
            assert!(!why.contains("s3"), "{why}");
        }
    }
}
