//! The web server: `/metrics`, health, readiness, a landing page and the API.
//!
//! Invariant: no request calls the driver or waits for a lane, and every request is answered or refused at once,
//! whatever state the driver is in and whatever other clients do. The bodies of all responses in progress use a bounded
//! amount of memory together (ADR 0025).
//!
//! The path of a request: a [`Listener`] accepts a connection; the [`Server`] admits it to the pool, performs the TLS
//! handshake, speaks HTTP and has the [`Guard`](web_config::Guard) check each request; the [`router`](mod@router)
//! responds.

mod accept;
mod allowance;
mod api;
mod assets;
mod connection;
mod health;
mod landing;
mod listener;
mod long;
mod origin;
mod pool;
mod request;
mod response;
mod router;
mod server;
mod shares;
mod state;
mod stream;

pub use listener::Listener;
pub use router::{dcgm_router, health_router, router};
pub use server::Server;
pub use state::{ALIVE_WITHIN, HttpState};

pub use crate::config::Limits;
