//! Clients that support more than this exporter's TLS does.

use std::fs;
use std::sync::{Arc, Mutex};

use rustls::client::ResolvesClientCert;
use rustls::crypto::{ActiveKeyExchange, SharedSecret, SupportedKxGroup, ring};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls::{NamedGroup, SignatureScheme};

use super::handshakes::{NONE, client, shake, shake_as};
use super::pki::{Pki, open};

// A CA with a P-521 key, and a client's certificate that it signed. rcgen, which makes the other certificates, does
// not support P-521.
const P521_CA: &str = include_str!("../../fixtures/p521/ca.crt");
const SIGNED_WITH_P521: &str = include_str!("../../fixtures/p521/client.crt");

#[tokio::test]
async fn certificates_signed_with_p521_are_refused_and_never_requested() {
    let pki = Pki::new();
    fs::write(pki.at("p521_ca.crt"), P521_CA).unwrap();
    let text = fs::read_to_string(pki.fixture("client_verify.good.yml")).unwrap().replace("ca.crt", "p521_ca.crt");
    fs::write(pki.at("web.yml"), text).unwrap();
    let server = open(&pki.at("web.yml")).unwrap().tls().unwrap();
    let signed = CertificateDer::from_pem_slice(SIGNED_WITH_P521.as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_file(pki.at("client.key")).unwrap();
    let signed = CertifiedKey::new(vec![signed], ring::sign::any_supported_type(&key).unwrap());
    let signed = Arc::new(SingleCertAndKey::from(signed));
    for version in [&TLS12, &TLS13] {
        let client = || client(&pki, "").speaking(&[version]);
        // The chain is checked before the proof that the client holds the key.
        let error = shake_as(server.clone(), client().resolving(signed.clone())).await.unwrap_err();
        assert!(error.contains("UnsupportedSignatureAlgorithm"), "{error}");
        let asked = Arc::new(Asked(Mutex::default()));
        assert!(shake_as(server.clone(), client().resolving(asked.clone())).await.unwrap_err().contains(NONE));
        let schemes = asked.0.lock().unwrap().clone();
        assert!(schemes.contains(&SignatureScheme::ECDSA_NISTP384_SHA384), "{schemes:?}");
        assert!(!schemes.contains(&SignatureScheme::ECDSA_NISTP521_SHA512), "{schemes:?}");
    }
}

/// Records which signature schemes a server requests, and presents no certificate.
#[derive(Debug)]
struct Asked(Mutex<Vec<SignatureScheme>>);

impl ResolvesClientCert for Asked {
    fn resolve(&self, _: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        *self.0.lock().unwrap() = schemes.to_vec();
        None
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// A group that the client offers but cannot use.
#[derive(Debug)]
struct PostQuantum;

struct Offered;

impl SupportedKxGroup for PostQuantum {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, rustls::Error> {
        Ok(Box::new(Offered))
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::X25519MLKEM768
    }
}

impl ActiveKeyExchange for Offered {
    fn complete(self: Box<Self>, _: &[u8]) -> Result<SharedSecret, rustls::Error> {
        panic!("the server accepted a group that it does not support");
    }

    fn pub_key(&self) -> &[u8] {
        &[7; 1216]
    }

    fn group(&self) -> NamedGroup {
        NamedGroup::X25519MLKEM768
    }
}

#[tokio::test]
async fn the_post_quantum_group_of_a_client_is_passed_over_for_x25519() {
    use ring::kx_group::X25519;
    let pki = Pki::new();
    let server = open(&pki.fixture("tls.good.yml")).unwrap().tls().unwrap();
    let agreed = shake(server.clone(), client(&pki, "").with_groups(&[&PostQuantum, X25519])).await.unwrap();
    assert_eq!(agreed.group, Some(NamedGroup::X25519));
    let error = shake(server, client(&pki, "").with_groups(&[&PostQuantum])).await.unwrap_err();
    assert!(error.contains("NoKxGroupsInCommon"), "{error}");
}
