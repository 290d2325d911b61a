//! Files that change while the server runs.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::http::HeaderMap;
use web_config::{ErrorKind, Event, Guard, Refusal};

use super::handshakes::{Client, shake};
use super::passwords::basic;
use super::pki::{CLIENT, Pki, SERVER, ca, open};

/// How many refusals a guard reported, by kind.
#[derive(Default)]
struct Refusals {
    invalid: AtomicU64,
    unreadable: AtomicU64,
}

impl Refusals {
    /// Opens a guard whose refusals are counted.
    fn of(file: &Path) -> (Arc<Self>, Guard) {
        let refusals = Arc::new(Self::default());
        let counted = refusals.clone();
        let guard = Guard::open(Some(file), move |event| {
            let Event::Refused(error) = event else { return };
            let kind = match error.kind() {
                ErrorKind::Invalid => &counted.invalid,
                ErrorKind::Unreadable => &counted.unreadable,
            };
            kind.fetch_add(1, Ordering::Relaxed);
        });
        (refusals, guard.unwrap())
    }

    /// The numbers of invalid and of unreadable files.
    fn counts(&self) -> (u64, u64) {
        (self.invalid.load(Ordering::Relaxed), self.unreadable.load(Ordering::Relaxed))
    }
}

const TLS: &str = "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n";

fn client(pki: &Pki) -> Client {
    Client::trusting(&pki.at("ca.crt"))
}

#[tokio::test]
async fn a_new_certificate_is_used_for_the_next_client() {
    let pki = Pki::new();
    let guard = pki.guard(TLS).unwrap();
    let before = shake(guard.tls().unwrap(), client(&pki)).await.unwrap().server;
    assert!(!guard.reload().unwrap(), "nothing changed");
    pki.leaf(&pki.ca, "server", &SERVER);
    assert!(guard.reload().unwrap());
    let after = shake(guard.tls().unwrap(), client(&pki)).await.unwrap().server;
    assert_ne!(before, after);
    assert!(!guard.reload().unwrap());
}

#[tokio::test]
async fn a_new_ca_refuses_the_clients_of_the_old_one() {
    let pki = Pki::new();
    let guard = open(&pki.fixture("client_sans.good.yml")).unwrap();
    let showing = |name: &str| client(&pki).showing(&pki.at(&format!("{name}.crt")), &pki.at(&format!("{name}.key")));
    assert!(shake(guard.tls().unwrap(), showing("client")).await.is_ok());
    let newer = ca("newer CA");
    pki.leaf(&newer, "newer", &CLIENT);
    let trusted = fs::read_to_string(pki.at("ca.crt")).unwrap();
    fs::write(pki.at("ca.crt"), newer.pem()).unwrap();
    assert!(guard.reload().unwrap());
    fs::write(pki.at("ca.crt"), trusted).unwrap();
    let tls = guard.tls().unwrap();
    assert!(shake(tls.clone(), showing("client")).await.unwrap_err().contains("UnknownIssuer"));
    assert!(shake(tls, showing("newer")).await.is_ok());
}

#[tokio::test]
async fn users_headers_and_limit_follow_the_file() {
    let pki = Pki::new();
    let guard = pki.guard("basic_auth_users:\n  alice: @alice@\n").unwrap();
    assert_eq!(guard.admit(&basic("alice", "wonderland")).await, Ok(()));
    assert_eq!(guard.admit(&basic("bob", "builder")).await, Err(Refusal::Unauthorized));
    pki.config("basic_auth_users:\n  bob: @bob@\nhttp_server_config:\n  headers:\n    X-Frame-Options: deny\n");
    assert!(guard.reload().unwrap());
    assert_eq!(guard.admit(&basic("alice", "wonderland")).await, Err(Refusal::Unauthorized));
    assert_eq!(guard.admit(&basic("bob", "builder")).await, Ok(()));
    assert_eq!(guard.headers().len(), 1);
    pki.config("basic_auth_users:\n  bob: @bob@\n");
    assert!(guard.reload().unwrap());
    assert!(guard.headers().is_empty());
    let guard = pki.guard("").unwrap();
    pki.config("rate_limit:\n  interval: 1h\n  burst: 1\n");
    assert!(guard.reload().unwrap());
    assert_eq!(guard.admit(&HeaderMap::new()).await, Ok(()));
    pki.config("# changed\nrate_limit:\n  interval: 1h\n  burst: 1\n");
    assert!(guard.reload().unwrap());
    assert_eq!(guard.admit(&HeaderMap::new()).await, Err(Refusal::TooManyRequests), "the same limit keeps its count");
    pki.config("rate_limit:\n  interval: 1h\n  burst: 2\n");
    assert!(guard.reload().unwrap());
    assert_eq!(guard.admit(&HeaderMap::new()).await, Ok(()), "a changed limit starts a new count");
}

#[tokio::test]
async fn an_invalid_file_changes_nothing_and_is_reported_once() {
    let pki = Pki::new();
    let text = format!("{TLS}basic_auth_users:\n  alice: $2b$04$......................{}\n", ".".repeat(31));
    let (refusals, guard) = Refusals::of(&pki.config(&text));
    let first = guard.tls().unwrap();
    for _ in 0..3 {
        pki.config("nonsense: true\n");
        assert!(guard.reload().unwrap_err().to_string().contains("nonsense"));
    }
    assert_eq!(refusals.counts(), (1, 0));
    pki.config(&text);
    assert!(!guard.reload().unwrap(), "as before");
    pki.config("nonsense: true\n");
    assert!(guard.reload().is_err());
    assert_eq!(refusals.counts(), (2, 0), "the file was valid in between");
    pki.config(&text);
    let key = fs::read(pki.at("server.key")).unwrap();
    fs::copy(pki.at("stranger.key"), pki.at("server.key")).unwrap();
    assert!(guard.reload().unwrap_err().to_string().contains("is not the key of the certificate"));
    fs::remove_file(pki.at("server.key")).unwrap();
    assert!(guard.reload().unwrap_err().to_string().contains("cannot be read"));
    assert_eq!(refusals.counts(), (3, 1));
    assert!(Arc::ptr_eq(&first, &guard.tls().unwrap()));
    assert_eq!(guard.admit(&HeaderMap::new()).await, Err(Refusal::Unauthorized), "users are still required");
    fs::write(pki.at("server.key"), key).unwrap();
    assert!(!guard.reload().unwrap());
}

#[tokio::test]
async fn tls_is_not_switched_while_the_server_runs() {
    let pki = Pki::new();
    let guard = pki.guard(TLS).unwrap();
    pki.config("");
    assert!(guard.reload().unwrap_err().to_string().contains("TLS cannot be switched off while the server runs"));
    assert!(guard.tls().is_some());
    let plain = pki.guard("").unwrap();
    pki.config(TLS);
    assert!(plain.reload().unwrap_err().to_string().contains("TLS cannot be switched on while the server runs"));
    assert!(plain.tls().is_none());
}

const USERS: &str = "basic_auth_users:\n  alice: '@alice@'\n";
const CA: &str = "  client_ca_file: ca.crt\n";
const SANS: &str = "  client_allowed_sans: [scraper.example]\n";

fn policy(name: &str) -> String {
    format!("{TLS}  client_auth_type: {name}\n")
}

#[tokio::test]
async fn passwords_are_not_switched_off_while_the_server_runs() {
    let pki = Pki::new();
    for (before, after) in [
        (USERS.to_owned(), ""),
        (USERS.to_owned(), "basic_auth_users:\n"),
        (USERS.to_owned(), "rate_limit:\n  interval: 1s\n  burst: 1\n"),
        (format!("{TLS}{USERS}"), TLS),
    ] {
        let (refusals, guard) = Refusals::of(&pki.config(&before));
        pki.config(after);
        let error = guard.reload().unwrap_err();
        assert!(error.to_string().contains("basic_auth_users cannot be switched off while the server runs"), "{error}");
        assert_eq!(guard.admit(&HeaderMap::new()).await, Err(Refusal::Unauthorized), "{after:?}");
        assert_eq!(guard.admit(&basic("alice", "wonderland")).await, Ok(()), "{after:?}");
        assert_eq!(refusals.counts(), (1, 0), "{after:?}");
        assert_eq!(pki.guard(after).unwrap().admit(&HeaderMap::new()).await, Ok(()), "a restart accepts {after:?}");
    }
    let guard = pki.guard("").unwrap();
    pki.config(USERS);
    assert!(guard.reload().unwrap(), "users may be added while the server runs");
    assert_eq!(guard.admit(&HeaderMap::new()).await, Err(Refusal::Unauthorized));
}

#[tokio::test]
async fn demands_on_client_certificates_stay_while_the_server_runs() {
    let pki = Pki::new();
    let verify = policy("RequireAndVerifyClientCert") + CA;
    let (any, given) = (policy("RequireAnyClientCert"), policy("VerifyClientCertIfGiven") + CA);
    let refused = [
        (verify.clone(), TLS.to_owned(), "the requirement for client certificates"),
        (verify.clone(), policy("RequestClientCert"), "the requirement for client certificates"),
        (verify.clone(), given.clone(), "the requirement for client certificates"),
        (any.clone(), TLS.to_owned(), "the requirement for client certificates"),
        (any.clone(), given.clone(), "the requirement for client certificates"),
        (verify.clone(), any.clone(), "the requirement for verified client certificates"),
        (verify.clone() + SANS, verify.clone(), "client_allowed_sans"),
        (verify.clone() + SANS, verify.clone() + "  client_allowed_sans:\n", "client_allowed_sans"),
    ];
    for (before, after, what) in refused {
        let guard = pki.guard(&before).unwrap();
        let tls = guard.tls().unwrap();
        pki.config(&after);
        let error = guard.reload().unwrap_err().to_string();
        assert!(error.contains(&format!("{what} cannot be switched off while the server runs")), "{error}");
        assert!(Arc::ptr_eq(&tls, &guard.tls().unwrap()), "{after}");
        assert!(shake(guard.tls().unwrap(), client(&pki)).await.is_err(), "{after}");
        assert!(pki.guard(&after).is_ok(), "a restart accepts {after}");
    }
    let other = verify.clone() + "  client_allowed_sans: [other.example]\n";
    let taken = [
        (TLS.to_owned(), any.clone()),
        (any, verify.clone()),
        (given.clone(), TLS.to_owned()),
        (given, verify.clone()),
        (verify.clone(), verify.clone() + SANS),
        (verify + SANS, other),
    ];
    for (before, after) in taken {
        let guard = pki.guard(&before).unwrap();
        pki.config(&after);
        assert!(guard.reload().unwrap(), "{after}");
    }
}

#[tokio::test]
async fn a_watch_without_a_file_ends() {
    Arc::new(Guard::open(None, |_| ()).unwrap()).watch().await;
}
