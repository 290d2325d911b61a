//! The web-config file: every form of it is accepted or refused, and it has the intended effect on real handshakes and
//! real passwords.

mod differs;
mod handshakes;
mod hostile;
mod originals;
mod passwords;
pub(crate) mod pki;
mod reload;
mod shapes;
