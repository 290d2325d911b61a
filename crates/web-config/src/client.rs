//! Which clients pass the TLS handshake: `client_auth_type`, the CAs and `client_allowed_sans`.
//!
//! Invariant: a client that presents a certificate has proven that it holds the private key, whatever else the policy
//! requires. Names are read only from a certificate that was verified.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};

use super::document::Tls;
use super::error::Problem;
use super::names::{alternative_names, check_use};
use super::pem::Pem;

/// What a client must present. The names are those of the file format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientAuth {
    /// Nothing: no certificate is requested.
    NoClientCert,
    /// A certificate is requested; none is required, and any is accepted.
    RequestClientCert,
    /// A certificate is required, and any is accepted.
    RequireAnyClientCert,
    /// No certificate is required; one that is presented must be verified.
    VerifyClientCertIfGiven,
    /// A verified certificate is required.
    RequireAndVerifyClientCert,
}

const AUTH_KEY: &str = "tls_server_config.client_auth_type";
const SANS_KEY: &str = "tls_server_config.client_allowed_sans";

impl ClientAuth {
    fn parse(name: &str) -> Result<Self, Problem> {
        Ok(match name {
            "" | "NoClientCert" => Self::NoClientCert,
            "RequestClientCert" => Self::RequestClientCert,
            "RequireAnyClientCert" | "RequireClientCert" => Self::RequireAnyClientCert,
            "VerifyClientCertIfGiven" => Self::VerifyClientCertIfGiven,
            "RequireAndVerifyClientCert" => Self::RequireAndVerifyClientCert,
            _ => return Err(Problem::refused(AUTH_KEY, format!("unknown policy {name:?}"))),
        })
    }

    fn verifies(self) -> bool {
        matches!(self, Self::VerifyClientCertIfGiven | Self::RequireAndVerifyClientCert)
    }

    pub(super) fn needs_certificate(self) -> bool {
        matches!(self, Self::RequireAnyClientCert | Self::RequireAndVerifyClientCert)
    }
}

/// The policy that a file sets, checked as far as possible without reading the CAs.
pub(super) fn policy(tls: &Tls, has_ca: bool, notes: &mut Vec<String>) -> Result<ClientAuth, Problem> {
    let auth = ClientAuth::parse(tls.client_auth_type.as_deref().unwrap_or_default())?;
    if has_ca && auth == ClientAuth::NoClientCert {
        return Err(Problem::refused(AUTH_KEY, "is missing although there are CAs for clients"));
    }
    if has_ca && !auth.verifies() {
        notes.push(format!("{AUTH_KEY}: {auth:?} verifies no certificate; the CAs for clients have no effect"));
    }
    if !has_ca && auth == ClientAuth::RequireAndVerifyClientCert {
        let why =
            "needs client_ca_file or client_ca; only Go falls back to the system's CAs: to use them, name their file";
        return Err(Problem::refused(AUTH_KEY, why));
    }
    if !has_ca && auth == ClientAuth::VerifyClientCertIfGiven {
        let note = "there is no CA for clients: a client with a certificate is refused, and one without is admitted";
        notes.push(format!("{AUTH_KEY}: {note}"));
    }
    match &tls.client_allowed_sans {
        Some(sans) if sans.is_empty() => Err(Problem::refused(SANS_KEY, "is empty, which would admit no client")),
        Some(_) if auth != ClientAuth::RequireAndVerifyClientCert => {
            let why = "needs client_auth_type RequireAndVerifyClientCert: a client without a certificate has no name, \
                       and an unverified certificate can contain any name";
            Err(Problem::refused(SANS_KEY, why))
        }
        _ => Ok(auth),
    }
}

/// The verifier for a policy; `None` if no certificate is requested.
pub(super) fn verifier(
    auth: ClientAuth,
    ca: Option<&Pem>,
    allowed: Option<Vec<String>>,
    provider: &Arc<CryptoProvider>,
) -> Result<Option<Arc<dyn ClientCertVerifier>>, Problem> {
    // CAs that are not used are read all the same, because a file that contains anything invalid is refused.
    let trusted = ca.map(Pem::certificates).transpose()?.unwrap_or_default();
    if auth == ClientAuth::NoClientCert {
        return Ok(None);
    }
    let chains = match ca {
        Some(Pem { key, .. }) if auth.verifies() => {
            let mut roots = RootCertStore::empty();
            for certificate in &trusted {
                let no_ca = |error: Error| Problem::refused(key, format!("a certificate is not a CA: {error}"));
                roots.add(certificate.clone()).map_err(no_ca)?;
            }
            let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
            Some(builder.build().map_err(|error| Problem::refused(key, error.to_string()))?)
        }
        _ => None,
    };
    Ok(Some(Arc::new(Verifier { auth, chains, trusted, allowed, provider: provider.clone() })))
}

#[derive(Debug)]
struct Verifier {
    auth: ClientAuth,
    /// Verifies chains up to the CAs, if there are any.
    chains: Option<Arc<dyn ClientCertVerifier>>,
    /// The certificates of the CA file: a client certificate that is one of them is trusted without a chain.
    trusted: Vec<CertificateDer<'static>>,
    allowed: Option<Vec<String>>,
    provider: Arc<CryptoProvider>,
}

impl Verifier {
    fn verify_chain(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        // A self-signed client certificate is often listed as its own CA. Go accepts it; webpki does not accept a CA as
        // a client.
        if self.trusted.iter().any(|trusted| trusted == end_entity) {
            return Ok(check_use(end_entity, now)?);
        }
        let Some(chains) = &self.chains else { return Err(CertificateError::UnknownIssuer.into()) };
        chains.verify_client_cert(end_entity, intermediates, now).map(|_| ())
    }

    fn verify_name(&self, end_entity: &CertificateDer<'_>) -> Result<(), Error> {
        let Some(allowed) = &self.allowed else { return Ok(()) };
        let names = alternative_names(end_entity)?;
        let known = names.iter().any(|name| allowed.contains(name));
        if known { Ok(()) } else { Err(CertificateError::ApplicationVerificationFailure.into()) }
    }
}

impl ClientCertVerifier for Verifier {
    fn client_auth_mandatory(&self) -> bool {
        self.auth.needs_certificate()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chains.as_ref().map(|chains| chains.root_hint_subjects()).unwrap_or_default()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if self.auth.verifies() {
            self.verify_chain(end_entity, intermediates, now)?;
            self.verify_name(end_entity)?;
        }
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(auth: &str, has_ca: bool, sans: Option<&[&str]>) -> Result<usize, String> {
        let client_allowed_sans = sans.map(|sans| sans.iter().map(|&san| san.to_owned()).collect());
        let tls = Tls { client_auth_type: Some(auth.to_owned()), client_allowed_sans, ..Tls::default() };
        let mut notes = Vec::new();
        policy(&tls, has_ca, &mut notes).map(|_| notes.len()).map_err(|problem| problem.to_string())
    }

    #[test]
    fn a_policy_must_fit_its_cas() {
        assert_eq!(checked("", false, None), Ok(0));
        assert_eq!(checked("NoClientCert", false, None), Ok(0));
        assert_eq!(checked("RequestClientCert", true, None), Ok(1));
        assert_eq!(checked("RequireClientCert", false, None), Ok(0));
        assert_eq!(checked("VerifyClientCertIfGiven", false, None), Ok(1));
        assert_eq!(checked("VerifyClientCertIfGiven", true, None), Ok(0));
        assert_eq!(checked("RequireAndVerifyClientCert", true, Some(&["a"])), Ok(0));
        for (auth, has_ca, sans, message) in [
            ("", true, None, "is missing although there are CAs"),
            ("NoClientCert", true, None, "is missing although there are CAs"),
            ("RequireAndVerifyClientCert", false, None, "needs client_ca_file"),
            ("requireAndVerifyClientCert", true, None, "unknown policy"),
            ("", false, Some(&["a"][..]), "needs client_auth_type RequireAndVerifyClientCert"),
            ("RequestClientCert", false, Some(&["a"]), "needs client_auth_type RequireAndVerifyClientCert"),
            ("RequireAnyClientCert", false, Some(&["a"]), "needs client_auth_type RequireAndVerifyClientCert"),
            ("VerifyClientCertIfGiven", true, Some(&["a"]), "needs client_auth_type RequireAndVerifyClientCert"),
            ("RequireAndVerifyClientCert", true, Some(&[]), "would admit no client"),
        ] {
            let why = checked(auth, has_ca, sans).unwrap_err();
            assert!(why.contains(message), "{why}");
        }
    }
}
