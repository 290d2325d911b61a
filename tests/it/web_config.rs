//! The web-config file: which forms of it are accepted, which are rejected, and its effect on real handshakes and real
//! passwords.

mod differs;
pub(crate) mod handshakes;
mod originals;
mod passwords;
pub(crate) mod pki;
mod reload;
mod shapes;
