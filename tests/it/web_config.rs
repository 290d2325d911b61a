//! The web-config file: every shape of it is accepted or refused, and it has the intended effect in real handshakes and on real
//! passwords.

mod differs;
mod handshakes;
mod hostile;
mod originals;
mod passwords;
pub(crate) mod pki;
mod reload;
mod shapes;
