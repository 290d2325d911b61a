//! The web-config file: every shape of it is taken or refused, and what it asks for is what a client meets, in real
//! handshakes and with real passwords.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr)]

#[path = "web_config/differs.rs"]
mod differs;
#[path = "web_config/handshakes.rs"]
mod handshakes;
#[path = "web_config/hostile.rs"]
mod hostile;
#[path = "web_config/originals.rs"]
mod originals;
#[path = "web_config/passwords.rs"]
mod passwords;
#[path = "web_config/pki.rs"]
mod pki;
#[path = "web_config/reload.rs"]
mod reload;
#[path = "web_config/shapes.rs"]
mod shapes;
