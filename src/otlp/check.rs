//! Checks the settings and the files that they name, before anything starts.

use super::client::{Access, url};
use super::error::Error;
use super::resource;
use super::settings::Settings;

/// Checks the endpoint, the headers, the certificates and the attributes. Nothing is sent.
///
/// # Errors
/// When one of them cannot be used.
pub fn check(settings: &Settings) -> Result<(), Error> {
    url(&settings.endpoint)?;
    resource::read(settings, false)?;
    Access::read(settings).map(drop)
}
