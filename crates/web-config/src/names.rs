//! What a client's certificate contains: its subject alternative names, validity and purpose.

use std::net::IpAddr;

use rustls::CertificateError;
use rustls::pki_types::{CertificateDer, UnixTime};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer as _;
use x509_parser::time::ASN1Time;

fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, CertificateError> {
    match X509Certificate::from_der(certificate) {
        Ok(([], parsed)) => Ok(parsed),
        _ => Err(CertificateError::BadEncoding),
    }
}

/// The DNS names, e-mail addresses, IP addresses and URIs of the certificate, as text.
pub(super) fn alternative_names(certificate: &CertificateDer<'_>) -> Result<Vec<String>, CertificateError> {
    let parsed = parse(certificate)?;
    let extension = parsed.subject_alternative_name().map_err(|_| CertificateError::BadEncoding)?;
    let names = extension.map(|extension| extension.value.general_names.as_slice()).unwrap_or_default();
    Ok(names.iter().filter_map(text).collect())
}

fn text(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) | GeneralName::RFC822Name(name) | GeneralName::URI(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => {
            let v4 = || <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
            let v6 = || <[u8; 16]>::try_from(*bytes).map(IpAddr::from);
            v4().or_else(|_| v6()).ok().map(|address| address.to_canonical().to_string())
        }
        _ => None,
    }
}

/// Whether the certificate is valid now and, if it states its purposes, meant for clients.
pub(super) fn check_use(certificate: &CertificateDer<'_>, now: UnixTime) -> Result<(), CertificateError> {
    let parsed = parse(certificate)?;
    let now = i64::try_from(now.as_secs()).ok().and_then(|seconds| ASN1Time::from_timestamp(seconds).ok());
    let now = now.ok_or(CertificateError::Expired)?;
    if now < parsed.validity().not_before {
        return Err(CertificateError::NotValidYet);
    }
    if now > parsed.validity().not_after {
        return Err(CertificateError::Expired);
    }
    let usage = parsed.extended_key_usage().map_err(|_| CertificateError::BadEncoding)?;
    match usage.map(|usage| usage.value.any || usage.value.client_auth) {
        Some(false) => Err(CertificateError::InvalidPurpose),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, KeyPair, SanType, date_time_ymd};

    fn certificate(shape: impl FnOnce(&mut CertificateParams)) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        shape(&mut params);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    #[test]
    fn four_kinds_of_names_are_read() {
        let with_names = certificate(|params| {
            params.subject_alt_names = vec![
                SanType::DnsName("scraper.example".try_into().unwrap()),
                SanType::Rfc822Name("ops@example.org".try_into().unwrap()),
                SanType::IpAddress("10.0.0.1".parse().unwrap()),
                SanType::IpAddress("2001:db8:0:0::1".parse().unwrap()),
                SanType::URI("spiffe://example/scraper".try_into().unwrap()),
            ];
        });
        let names = ["scraper.example", "ops@example.org", "10.0.0.1", "2001:db8::1", "spiffe://example/scraper"];
        assert_eq!(alternative_names(&with_names).unwrap(), names);
        assert!(alternative_names(&certificate(|_| ())).unwrap().is_empty());
        let mut broken = with_names.to_vec();
        broken.truncate(200);
        assert_eq!(alternative_names(&broken.into()), Err(CertificateError::BadEncoding));
    }

    #[test]
    fn validity_and_purpose_are_checked() {
        let in_year =
            |year: u64| UnixTime::since_unix_epoch(std::time::Duration::from_secs((year - 1970) * 31_556_952));
        let of = |purposes: &[ExtendedKeyUsagePurpose]| {
            certificate(|params| {
                params.not_before = date_time_ymd(2020, 1, 1);
                params.not_after = date_time_ymd(2030, 1, 1);
                params.extended_key_usages = purposes.to_vec();
            })
        };
        let anything = of(&[]);
        assert_eq!(check_use(&anything, in_year(2025)), Ok(()));
        assert_eq!(check_use(&anything, in_year(2019)), Err(CertificateError::NotValidYet));
        assert_eq!(check_use(&anything, in_year(2031)), Err(CertificateError::Expired));
        let server = of(&[ExtendedKeyUsagePurpose::ServerAuth]);
        assert_eq!(check_use(&server, in_year(2025)), Err(CertificateError::InvalidPurpose));
        assert_eq!(check_use(&of(&[ExtendedKeyUsagePurpose::Any]), in_year(2025)), Ok(()));
        let client = of(&[ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth]);
        assert_eq!(check_use(&client, in_year(2025)), Ok(()));
    }
}
