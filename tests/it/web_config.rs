//! The web-config file: every shape of it is taken or refused, and what it asks for is what a client meets, in real
//! handshakes and with real passwords.

mod differs;
mod handshakes;
mod hostile;
mod originals;
mod passwords;
pub(crate) mod pki;
mod reload;
mod shapes;
