//! The client of HTTP and HTTPS: for the receiver of pushes, the API server, and the commands that ask a server.
//!
//! Invariants: each request has a connection of its own, which ends with its answer; neither redirects nor proxies from the
//! environment are followed; a server can make the client read only a limited number of bytes and pieces, counted while they are
//! read ([`meter`]); no header of a request appears in an error.

mod access;
mod ask;
mod body;
mod cause;
mod error;
mod https;
mod meter;
pub mod regular_file;
mod secrets;
pub mod server_url;
mod tls;

pub use self::access::Error as AccessError;
pub use self::ask::{Answer, Client, within};
pub use self::body::{Body, whole};
pub use self::cause::{innermost, is_io};
pub use self::error::Error;
pub use self::https::{Connection, retry_after};
pub use self::secrets::Secrets;
pub use self::tls::{Error as TlsError, Tls};

/// The longest text from a server in a message, in characters.
pub const QUOTED: usize = 300;
