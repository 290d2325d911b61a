//! The bearer token, read from its file for every request, so that a rotated token takes effect at once.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::time::Duration;

use hyper::header::HeaderValue;

use super::error::Error;
use crate::blocking_read::BlockingRead;

/// The largest token file that is read, in bytes.
const TOKEN_LIMIT: u64 = 64 << 10;

/// The file that holds the token.
#[derive(Debug, Clone)]
pub(super) struct TokenFile {
    pub(super) path: PathBuf,
    /// What the token is for, in the words that error messages use.
    pub(super) purpose: &'static str,
}

impl TokenFile {
    /// The token in the file as an `Authorization` header, without surrounding white space, which hand-written files
    /// often have.
    pub(super) async fn bearer(
        &self,
        read: &BlockingRead<io::Result<String>>,
        limit: Duration,
    ) -> Result<HeaderValue, Error> {
        let failed = |error: io::Error| Error::file(&self.path, self.purpose, &error);
        let invalid = |text| failed(io::Error::new(io::ErrorKind::InvalidData, text));
        let path = self.path.clone();
        let file = move || {
            let mut text = String::new();
            File::open(path)?.take(TOKEN_LIMIT).read_to_string(&mut text)?;
            Ok(text)
        };
        let text = read.take(limit, file).await.and_then(|text| text).map_err(failed)?;
        if text.trim().is_empty() {
            return Err(invalid("the file is empty"));
        }
        let header = HeaderValue::try_from(format!("Bearer {}", text.trim()));
        let mut header = header.map_err(|_| invalid("it holds no token"))?;
        header.set_sensitive(true);
        Ok(header)
    }
}
