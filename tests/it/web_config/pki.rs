//! A folder with certificates made for this run, and the fixtures next to them.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose as Purpose, IsCa, KeyPair,
    date_time_ymd,
};
use tempfile::TempDir;
use web_config::{Error, Guard};

/// The contents of a certificate.
pub(crate) struct Leaf {
    pub(crate) names: &'static [&'static str],
    pub(crate) purpose: Purpose,
    pub(crate) years: (i32, i32),
}

pub(crate) const CLIENT: Leaf = Leaf { names: &["scraper.example"], purpose: Purpose::ClientAuth, years: (2020, 2090) };
pub(crate) const SERVER: Leaf = Leaf { names: &["localhost"], purpose: Purpose::ServerAuth, years: (2020, 2090) };

pub(crate) type Ca = CertifiedIssuer<'static, KeyPair>;

/// The certificates: `ca` signed all but `stranger` and `self_signed`.
pub(crate) struct Pki {
    folder: TempDir,
    pub(crate) ca: Ca,
}

impl Pki {
    pub(crate) fn new() -> Self {
        let pki = Self { folder: tempfile::tempdir().unwrap(), ca: ca("house CA") };
        fs::write(pki.at("ca.crt"), pki.ca.pem()).unwrap();
        pki.leaf(&pki.ca, "server", &SERVER);
        pki.leaf(&pki.ca, "client", &CLIENT);
        pki.leaf(&pki.ca, "other", &Leaf { names: &["other.example"], ..CLIENT });
        pki.leaf(&pki.ca, "expired", &Leaf { years: (2020, 2021), ..CLIENT });
        pki.leaf(&pki.ca, "early", &Leaf { years: (2089, 2090), ..CLIENT });
        pki.leaf(&pki.ca, "any_purpose", &Leaf { purpose: Purpose::Any, ..CLIENT });
        pki.leaf(&ca("another CA"), "stranger", &CLIENT);
        pki.self_signed("self_signed", &CLIENT);
        pki.self_signed("self_signed_expired", &Leaf { years: (2020, 2021), ..CLIENT });
        pki
    }

    /// Writes a certificate that is its own authority, and its key.
    pub(crate) fn self_signed(&self, name: &str, leaf: &Leaf) {
        let key = KeyPair::generate().unwrap();
        let mut params = params(leaf);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        self.write(name, &params.self_signed(&key).unwrap().pem(), &key);
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Signs a certificate and writes `name.crt` and `name.key`.
    pub(crate) fn leaf(&self, ca: &Ca, name: &str, leaf: &Leaf) {
        let key = KeyPair::generate().unwrap();
        self.write(name, &params(leaf).signed_by(&key, ca).unwrap().pem(), &key);
    }

    fn write(&self, name: &str, certificate: &str, key: &KeyPair) {
        fs::write(self.at(&format!("{name}.crt")), certificate).unwrap();
        fs::write(self.at(&format!("{name}.key")), key.serialize_pem()).unwrap();
    }

    /// Writes a web-config file with the placeholders, such as `@ca.crt@`, filled in.
    pub(crate) fn config(&self, text: &str) -> PathBuf {
        let mut filled = text.to_owned();
        for name in ["server.crt", "server.key", "ca.crt"] {
            let pem = fs::read_to_string(self.at(name)).unwrap();
            filled = filled.replace(&format!("@{name}@"), pem.trim_end().replace('\n', "\n    ").as_str());
        }
        for (user, password) in [("alice", "wonderland"), ("bob", "builder")] {
            if filled.contains(&format!("@{user}@")) {
                filled = filled.replace(&format!("@{user}@"), &bcrypt::hash(password, 4).unwrap());
            }
        }
        let file = self.at("web.yml");
        fs::write(&file, filled).unwrap();
        file
    }

    /// Writes the web-config file of a fixture.
    pub(crate) fn fixture(&self, name: &str) -> PathBuf {
        self.config(&fs::read_to_string(fixtures().join(name)).unwrap())
    }

    pub(crate) fn guard(&self, text: &str) -> Result<Guard, Error> {
        open(&self.config(text))
    }
}

pub(crate) fn open(file: &Path) -> Result<Guard, Error> {
    Guard::open(Some(file), |_| ())
}

pub(crate) fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/web_config")
}

pub(crate) fn ca(name: &str) -> Ca {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn params(leaf: &Leaf) -> CertificateParams {
    let names: Vec<String> = leaf.names.iter().map(|&name| name.to_owned()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name.push(DnType::CommonName, leaf.names[0]);
    params.extended_key_usages = vec![leaf.purpose.clone()];
    params.not_before = date_time_ymd(leaf.years.0, 1, 1);
    params.not_after = date_time_ymd(leaf.years.1, 1, 1);
    params
}
