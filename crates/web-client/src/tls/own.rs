//! Trusts a server that presents one of the configured certificates itself.
//!
//! Invariant: this module accepts such a certificate only within its period of validity and for its own names. Everything else is
//! decided by the usual verifier, for which each configured certificate is an authority too: its key can sign for any name.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, OtherError, SignatureScheme};

/// The usual verifier, and the certificates that a server may also present itself. `openssl req -x509` makes a certificate
/// that is its own authority, which the usual verifier accepts for no server.
#[derive(Debug)]
pub(super) struct OrOwn {
    pub(super) usual: Arc<WebPkiServerVerifier>,
    pub(super) own: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for OrOwn {
    fn verify_server_cert(
        &self,
        presented: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        stapled: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let refused = match self.usual.verify_server_cert(presented, intermediates, name, stapled, now) {
            Err(refused) => refused,
            accepted => return accepted,
        };
        if !self.own.contains(presented) || !is_about_its_issuer(&refused) {
            return Err(refused);
        }
        verify_server_name(&ParsedCertificate::try_from(presented)?, name)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.usual.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.usual.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.usual.supported_verify_schemes()
    }
}

/// Whether the certificate was refused only because it is an authority's, or none that is trusted has issued it. webpki
/// checks the period of validity before all that.
fn is_about_its_issuer(refused: &Error) -> bool {
    match refused {
        // Another certificate can have the name of its issuer.
        Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => true,
        Error::InvalidCertificate(CertificateError::Other(OtherError(other))) => {
            matches!(other.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
    use rustls::RootCertStore;
    use rustls::crypto::ring::default_provider;

    use super::*;

    /// A certificate for `name` that signs itself, as an authority or not.
    fn certificate(name: &str, is_ca: IsCa, years: [i32; 2]) -> (CertificateParams, KeyPair) {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.is_ca = is_ca;
        [params.not_before, params.not_after] = years.map(|year| date_time_ymd(year, 1, 1));
        (params, KeyPair::generate().unwrap())
    }

    fn verify(own: &CertificateDer<'static>, presented: &CertificateDer<'_>, name: &'static str) -> Result<(), Error> {
        let mut roots = RootCertStore::empty();
        roots.add(own.clone()).unwrap();
        let usual = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::new(default_provider()));
        let verifier = OrOwn { usual: usual.build().unwrap(), own: vec![own.clone()] };
        // 2026.
        let now = UnixTime::since_unix_epoch(Duration::from_secs(1_790_000_000));
        verifier.verify_server_cert(presented, &[], &ServerName::try_from(name).unwrap(), &[], now).map(drop)
    }

    #[test]
    fn a_server_may_present_a_configured_certificate_itself() {
        let ca = IsCa::Ca(BasicConstraints::Unconstrained);
        for is_ca in [ca, IsCa::ExplicitNoCa, IsCa::NoCa] {
            let (params, key) = certificate("gpu.example", is_ca, [2020, 2040]);
            let own = params.self_signed(&key).unwrap().der().clone();
            verify(&own, &own, "gpu.example").unwrap();
            let other = verify(&own, &own, "other.example").unwrap_err();
            assert!(
                matches!(other, Error::InvalidCertificate(CertificateError::NotValidForNameContext { .. })),
                "{other:?}"
            );
        }
        // One that an authority has issued which is not in the file.
        let (params, authority_key) = certificate("authority", ca, [2020, 2040]);
        let authority = Issuer::new(params, authority_key);
        let (params, key) = certificate("gpu.example", IsCa::NoCa, [2020, 2040]);
        let issued = params.signed_by(&key, &authority).unwrap().der().clone();
        verify(&issued, &issued, "gpu.example").unwrap();
        verify(&issued, &issued, "other.example").unwrap_err();
    }

    #[test]
    fn a_configured_certificate_is_accepted_in_its_time_only() {
        for is_ca in [IsCa::Ca(BasicConstraints::Unconstrained), IsCa::NoCa] {
            for years in [[2020, 2025], [2035, 2040]] {
                let (params, key) = certificate("gpu.example", is_ca, years);
                let own = params.self_signed(&key).unwrap().der().clone();
                let refused = verify(&own, &own, "gpu.example").unwrap_err();
                let untimely = matches!(
                    refused,
                    Error::InvalidCertificate(
                        CertificateError::ExpiredContext { .. } | CertificateError::NotValidYetContext { .. }
                    )
                );
                assert!(untimely, "{refused:?}");
            }
        }
    }

    #[test]
    fn another_certificate_of_the_same_name_is_refused() {
        for is_ca in [IsCa::Ca(BasicConstraints::Unconstrained), IsCa::NoCa] {
            let make = || {
                let (params, key) = certificate("gpu.example", is_ca, [2020, 2040]);
                params.self_signed(&key).unwrap().der().clone()
            };
            verify(&make(), &make(), "gpu.example").unwrap_err();
        }
    }
}
