//! exporter-toolkit's own fixtures, for a test that is run by hand because they are not part of this project.
//!
//! `WEB_CONFIG_FIXTURES=exporter-toolkit/web/testdata cargo test --test it originals -- --nocapture`

use std::path::{Path, PathBuf};

use web_config::{Guard, Refusal};

use super::handshakes::{Client, shake};
use super::passwords::basic;
use super::pki::open;

/// Fixtures whose names do not show whether the file is accepted here.
const EXCEPTIONS: [(&str, &str); 3] = [
    // The same file as `…clientCAs_missing.bad.yml`. Go accepts it with the system's CAs; in exporter-toolkit's test
    // of the file, no client is admitted.
    ("web_config_noAuth.good.blocking.yml", "only Go falls back to the system's CAs"),
    // Names only a curve that ring lacks.
    ("web_config_noAuth_someCurves.good.yml", "only Go supports this curve"),
    // The file is valid; the client is refused. See below.
    ("web_config_auth_client_san.bad.yaml", ""),
];

fn folder() -> Option<PathBuf> {
    let folder = std::env::var_os("WEB_CONFIG_FIXTURES").map(PathBuf::from);
    if folder.is_none() {
        workspace_skips::skipped("WEB_CONFIG_FIXTURES does not name a folder with exporter-toolkit's fixtures");
    }
    folder
}

#[test]
fn originals_are_accepted_or_refused_as_their_names_say() {
    let Some(folder) = folder() else { return };
    let is_config =
        |path: &PathBuf| path.extension().is_some_and(|extension| extension == "yml" || extension == "yaml");
    let mut files: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).filter(is_config).collect();
    files.sort();
    assert!(files.len() > 30, "{} fixtures in {}", files.len(), folder.display());
    let mut wrong = Vec::new();
    for file in &files {
        let name = file.file_name().unwrap().to_str().unwrap();
        let exception = EXCEPTIONS.iter().find(|(other, _)| *other == name).map(|(_, message)| *message);
        let refuse = exception.map_or(name.contains(".bad.") || name.contains("junk"), |message| !message.is_empty());
        let verdict = Guard::check(file);
        let words =
            verdict.as_ref().map_or_else(ToString::to_string, |summary| format!("{summary} {:?}", summary.notes));
        let words = words.replace(&format!("{}/", folder.display()), "");
        println!("{:<8} | {name} | {words}", if verdict.is_ok() { "accepted" } else { "refused" });
        if verdict.is_err() != refuse || !words.contains(exception.unwrap_or_default()) {
            wrong.push(name.to_owned());
        }
    }
    assert!(wrong.is_empty(), "decided differently from exporter-toolkit: {wrong:?}");
}

#[tokio::test]
async fn originals_admit_the_clients_that_they_should() {
    let Some(folder) = folder() else { return };
    let at = |name: &str| folder.join(name);
    let showing = |name: &str| {
        let client = Client::trusting(&at("tls-ca-chain.pem"));
        if name.is_empty() { client } else { client.showing(&at(&format!("{name}.pem")), &at(&format!("{name}.key"))) }
    };
    for (file, certificate, admitted) in [
        ("web_config_noAuth.good.yml", "", true),
        ("web_config_noAuth_tlsInline.good.yml", "", true),
        ("web_config_noAuth_allCiphers.good.yml", "", true),
        ("web_config_noAuth_someCiphers.good.yml", "", true),
        ("web_config_noAuth_allCurves.good.yml", "", true),
        ("web_config_noAuth_noHTTP2.good.yml", "", true),
        ("tls_config_noAuth.requireanyclientcert.good.yml", "client_selfsigned", true),
        ("tls_config_noAuth.requireanyclientcert.good.yml", "", false),
        ("tls_config_noAuth.requireandverifyclientcert.good.yml", "client_selfsigned", true),
        ("tls_config_noAuth.requireandverifyclientcert.good.yml", "client2_selfsigned", false),
        ("web_config_auth_client_san.good.yaml", "client2_selfsigned", true),
        ("web_config_auth_client_san.bad.yaml", "client2_selfsigned", false),
    ] {
        let outcome = shake(open(&at(file)).unwrap().tls().unwrap(), showing(certificate)).await;
        assert_eq!(outcome.is_ok(), admitted, "{file} with {certificate:?}: {outcome:?}");
    }
    users(&at("web_config_users_noTLS.good.yml")).await;
}

async fn users(file: &Path) {
    let guard = open(file).unwrap();
    assert_eq!(guard.admit(&basic("dave", "dave123")).await, Ok(()));
    assert_eq!(guard.admit(&basic("carol", "carol123")).await, Ok(()));
    assert_eq!(guard.admit(&basic("dave", "bad")).await, Err(Refusal::Unauthorized));
}
