//! Real TLS handshakes with the settings of a web-config file.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use rustls::client::ResolvesClientCert;
use rustls::crypto::{CryptoProvider, SupportedKxGroup, ring};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls::{
    CipherSuite, ClientConfig, NamedGroup, ProtocolVersion, RootCertStore, ServerConfig, SupportedCipherSuite,
    SupportedProtocolVersion,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::pki::{Pki, open};

/// What both sides agreed upon.
#[derive(Debug, PartialEq)]
pub(crate) struct Agreed {
    pub(crate) version: ProtocolVersion,
    pub(crate) suite: CipherSuite,
    pub(crate) group: Option<NamedGroup>,
    pub(crate) server: CertificateDer<'static>,
    pub(crate) resumed: bool,
}

/// A client: what it supports, and which certificate it presents.
pub(crate) struct Client {
    provider: CryptoProvider,
    versions: Vec<&'static SupportedProtocolVersion>,
    roots: RootCertStore,
    shows: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
}

impl Client {
    pub(crate) fn trusting(ca: &Path) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(CertificateDer::pem_file_iter(ca).unwrap().map(Result::unwrap));
        Self { provider: ring::default_provider(), versions: vec![&TLS13, &TLS12], roots, shows: None }
    }

    pub(crate) fn showing(mut self, certificate: &Path, key: &Path) -> Self {
        let chain = CertificateDer::pem_file_iter(certificate).unwrap().map(Result::unwrap).collect();
        self.shows = Some((chain, PrivateKeyDer::from_pem_file(key).unwrap()));
        self
    }

    pub(crate) fn speaking(mut self, versions: &[&'static SupportedProtocolVersion]) -> Self {
        self.versions = versions.to_vec();
        self
    }

    fn with_suites(mut self, suites: &[SupportedCipherSuite]) -> Self {
        self.provider.cipher_suites = suites.to_vec();
        self
    }

    pub(crate) fn with_groups(mut self, groups: &[&'static dyn SupportedKxGroup]) -> Self {
        self.provider.kx_groups = groups.to_vec();
        self
    }

    /// The same client, with certificates that the resolver chooses.
    pub(crate) fn resolving(self, resolver: Arc<dyn ResolvesClientCert>) -> Arc<ClientConfig> {
        let builder = ClientConfig::builder_with_provider(Arc::new(self.provider));
        let builder = builder.with_protocol_versions(&self.versions).unwrap().with_root_certificates(self.roots);
        Arc::new(builder.with_client_cert_resolver(resolver))
    }

    pub(crate) fn config(self) -> Arc<ClientConfig> {
        let builder = ClientConfig::builder_with_provider(Arc::new(self.provider));
        let builder = builder.with_protocol_versions(&self.versions).unwrap().with_root_certificates(self.roots);
        Arc::new(match self.shows {
            Some((chain, key)) => builder.with_client_auth_cert(chain, key).unwrap(),
            None => builder.with_no_client_auth(),
        })
    }
}

/// Performs a handshake and exchanges a byte in both directions. A returned error is the server's.
pub(crate) async fn shake(server: Arc<ServerConfig>, client: Client) -> Result<Agreed, String> {
    shake_as(server, client.config()).await
}

pub(crate) async fn shake_as(server: Arc<ServerConfig>, client: Arc<ClientConfig>) -> Result<Agreed, String> {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let serving = async move {
        let mut stream = TlsAcceptor::from(server).accept(near).await.map_err(|error| error.to_string())?;
        stream.write_all(b"!").await.map_err(|error| error.to_string())?;
        stream.read_u8().await.map_err(|error| error.to_string())
    };
    let asking = async move {
        let name = ServerName::try_from("localhost").unwrap();
        let mut stream = TlsConnector::from(client).connect(name, far).await.ok()?;
        stream.read_u8().await.ok()?;
        stream.write_all(b"?").await.ok()?;
        stream.flush().await.ok()?;
        let session = stream.get_ref().1;
        Some(Agreed {
            version: session.protocol_version()?,
            suite: session.negotiated_cipher_suite()?.suite(),
            group: session.negotiated_key_exchange_group().map(|group| group.name()),
            server: session.peer_certificates()?.first()?.clone().into_owned(),
            resumed: session.handshake_kind() == Some(rustls::HandshakeKind::Resumed),
        })
    };
    let (served, agreed) = tokio::join!(serving, asking);
    served.map(|_| agreed.unwrap())
}

pub(crate) fn client(pki: &Pki, certificate: &str) -> Client {
    let client = Client::trusting(&pki.at("ca.crt"));
    if certificate.is_empty() {
        return client;
    }
    client.showing(&pki.at(&format!("{certificate}.crt")), &pki.at(&format!("{certificate}.key")))
}

pub(crate) const NONE: &str = "no certificates";
const UNKNOWN: &str = "UnknownIssuer";

/// The policy, the certificate that the client presents, and the server's refusal; "" if the client is admitted.
const POLICIES: [(&str, &str, &str); 34] = [
    ("tls", "", ""),
    ("tls", "client", ""),
    ("client_request", "", ""),
    ("client_request", "client", ""),
    ("client_request", "stranger", ""),
    ("client_request", "expired", ""),
    ("client_any", "", NONE),
    ("client_any", "client", ""),
    ("client_any", "stranger", ""),
    ("client_any", "expired", ""),
    ("client_any_old_name", "", NONE),
    ("client_if_given", "", ""),
    ("client_if_given", "client", ""),
    ("client_if_given", "stranger", UNKNOWN),
    ("client_if_given", "expired", "expired"),
    ("client_if_given_no_ca", "", ""),
    ("client_if_given_no_ca", "client", UNKNOWN),
    ("client_verify", "", NONE),
    ("client_verify", "client", ""),
    ("client_verify", "stranger", UNKNOWN),
    ("client_verify", "self_signed", "CaUsedAsEndEntity"),
    ("client_verify", "expired", "expired"),
    ("client_verify", "early", "not valid yet"),
    ("client_verify", "server", "does not allow extended key usage for client authentication"),
    ("client_verify", "any_purpose", "does not allow extended key usage for client authentication"),
    ("client_verify_inline", "client", ""),
    ("client_verify_inline", "stranger", UNKNOWN),
    ("client_verify_self_signed", "self_signed", ""),
    ("client_verify_self_signed", "client", UNKNOWN),
    ("client_sans", "", NONE),
    ("client_sans", "client", ""),
    ("client_sans", "other", "ApplicationVerificationFailure"),
    ("client_sans", "stranger", UNKNOWN),
    ("client_sans", "expired", "expired"),
];

#[tokio::test]
async fn each_policy_admits_the_clients_that_it_should() {
    let pki = Pki::new();
    for (shape, certificate, refusal) in POLICIES {
        let server = open(&pki.fixture(&format!("{shape}.good.yml"))).unwrap().tls().unwrap();
        for version in [&TLS12, &TLS13] {
            let outcome = shake(server.clone(), client(&pki, certificate).speaking(&[version])).await;
            let words =
                outcome.as_ref().err().map(|error| error.replace("sent no cert", "no cert")).unwrap_or_default();
            let fits = if refusal.is_empty() { words.is_empty() } else { words.contains(refusal) };
            assert!(fits, "{shape} with {certificate:?}: {outcome:?}");
        }
    }
}

#[tokio::test]
async fn a_trusted_self_signed_certificate_can_expire() {
    let pki = Pki::new();
    fs::copy(pki.at("self_signed_expired.crt"), pki.at("self_signed.crt")).unwrap();
    let server = open(&pki.fixture("client_verify_self_signed.good.yml")).unwrap().tls().unwrap();
    let error = shake(server, client(&pki, "self_signed_expired")).await.unwrap_err();
    assert!(error.contains("xpired"), "{error}");
}

#[tokio::test]
async fn a_client_must_hold_the_key_of_its_certificate() {
    let pki = Pki::new();
    for shape in ["client_request", "client_any", "client_verify"] {
        let server = open(&pki.fixture(&format!("{shape}.good.yml"))).unwrap().tls().unwrap();
        let chain = CertificateDer::pem_file_iter(pki.at("client.crt")).unwrap().map(Result::unwrap).collect();
        let key = PrivateKeyDer::from_pem_file(pki.at("stranger.key")).unwrap();
        let signer = ring::sign::any_supported_type(&key).unwrap();
        let thief = Arc::new(SingleCertAndKey::from(CertifiedKey::new(chain, signer)));
        for version in [&TLS12, &TLS13] {
            let config = client(&pki, "").speaking(&[version]).resolving(thief.clone());
            let error = shake_as(server.clone(), config).await.unwrap_err();
            assert!(error.contains("BadSignature"), "{shape}: {error}");
        }
    }
}

#[tokio::test]
async fn only_versions_between_the_bounds_are_spoken() {
    let pki = Pki::new();
    let newest = open(&pki.fixture("version_13.good.yml")).unwrap().tls().unwrap();
    assert_eq!(shake(newest.clone(), client(&pki, "")).await.unwrap().version, ProtocolVersion::TLSv1_3);
    assert!(shake(newest, client(&pki, "").speaking(&[&TLS12])).await.unwrap_err().contains("Tls12NotOffered"));
    let older = open(&pki.fixture("ciphers_some.good.yml")).unwrap().tls().unwrap();
    assert_eq!(shake(older.clone(), client(&pki, "")).await.unwrap().version, ProtocolVersion::TLSv1_2);
    assert!(shake(older, client(&pki, "").speaking(&[&TLS13])).await.is_err());
}

#[tokio::test]
async fn only_listed_suites_are_offered_in_the_configured_order() {
    use ring::cipher_suite::*;
    let pki = Pki::new();
    let both = [TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384];
    let server = open(&pki.fixture("ciphers_some.good.yml")).unwrap().tls().unwrap();
    let agreed = shake(server.clone(), client(&pki, "").with_suites(&both).speaking(&[&TLS12])).await.unwrap();
    assert_eq!(agreed.suite, CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, "the server's first");
    let other = [TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256];
    let error = shake(server, client(&pki, "").with_suites(&other).speaking(&[&TLS12])).await.unwrap_err();
    assert!(error.contains("NoCipherSuitesInCommon"), "{error}");
    let server = open(&pki.fixture("ciphers_some_client_order.good.yml")).unwrap().tls().unwrap();
    let agreed = shake(server, client(&pki, "").with_suites(&both).speaking(&[&TLS12])).await.unwrap();
    assert_eq!(agreed.suite, CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, "the client's first");
}

#[tokio::test]
async fn only_listed_curves_are_used() {
    use ring::kx_group::{SECP256R1, SECP384R1, X25519};
    let pki = Pki::new();
    let server = open(&pki.fixture("curves_some.good.yml")).unwrap().tls().unwrap();
    let agreed = shake(server.clone(), client(&pki, "").with_groups(&[X25519, SECP384R1])).await.unwrap();
    assert_eq!(agreed.group, Some(NamedGroup::secp384r1));
    let error = shake(server, client(&pki, "").with_groups(&[X25519, SECP256R1])).await.unwrap_err();
    assert!(error.contains("NoKxGroupsInCommon"), "{error}");
}

#[tokio::test]
async fn no_session_is_resumed() {
    let pki = Pki::new();
    let server = open(&pki.fixture("client_verify.good.yml")).unwrap().tls().unwrap();
    for version in [&TLS12, &TLS13] {
        let config = client(&pki, "client").speaking(&[version]).config();
        for _ in 0..3 {
            assert!(!shake_as(server.clone(), config.clone()).await.unwrap().resumed);
        }
    }
}
