//! The web configuration file of Prometheus' [exporter-toolkit] for any Rust exporter: TLS, client certificates, basic
//! auth, response headers and a rate limit, reloaded when a file changes.
//!
//! A [`Guard`] reads and checks the file and all files that it names. The exporter's web server then gets from it
//!
//! - the TLS settings of each new connection ([`Guard::tls`]),
//! - the decision whether to admit a request ([`Guard::admit`], [`Guard::admit_from`]),
//! - the headers to add to each response ([`Guard::headers`]).
//!
//! The crate opens no socket and writes no log: what happens to the files is reported as an [`Event`].
//!
//! Invariant: settings are complete and valid. A file that is invalid changes nothing: at startup, [`Guard::open`]
//! fails; later, the last valid settings stay in effect. While the server runs, TLS is not switched on or off, and
//! no kind of proof that clients must give (a password, a certificate, a name in it) is dropped.
//!
//! # Example
//!
//! ```
//! use http::{HeaderMap, HeaderValue, header};
//! use web_config::{Event, Guard, Refusal};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let folder = tempfile::tempdir()?;
//! let file = folder.path().join("web-config.yml");
//! let hash = bcrypt::hash("wonderland", 4)?;
//! std::fs::write(&file, format!("basic_auth_users:\n  alice: {hash}\n"))?;
//!
//! let guard = Guard::open(Some(&file), |event| match event {
//!     Event::Accepted(summary) => println!("web-config: {summary}"),
//!     Event::Refused(error) => eprintln!("web-config unchanged: {error}"),
//!     Event::Panicked(error) => eprintln!("web-config: {error}"),
//! })?;
//! assert!(guard.tls().is_none(), "the file has no tls_server_config: plain HTTP");
//!
//! let mut request = HeaderMap::new();
//! # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
//! # runtime.block_on(async {
//! assert_eq!(guard.admit(&request).await, Err(Refusal::Unauthorized));
//! request.insert(header::AUTHORIZATION, HeaderValue::from_static("Basic YWxpY2U6d29uZGVybGFuZA=="));
//! assert_eq!(guard.admit(&request).await, Ok(()));
//! # });
//! # Ok(())
//! # }
//! ```
//!
//! `tokio::spawn(Arc::new(guard).watch())` reloads the files as they change.
//!
//! [exporter-toolkit]: https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md

mod bucket;
mod client;
mod credentials;
mod document;
mod error;
mod event;
mod files;
mod guard;
mod headers;
mod interval;
mod names;
mod passwords;
mod pem;
mod refusal;
mod settings;
mod suites;
mod tls;
mod turns;
mod users;

#[doc(hidden)]
pub mod internals;

pub use client::ClientAuth;
pub use error::{Error, ErrorKind};
pub use event::Event;
pub use guard::Guard;
pub use refusal::Refusal;
pub use settings::Summary;
