//! Pushes the families of a scrape to an OTLP/HTTP receiver, under the names of a scrape, those of OpenTelemetry's
//! semantic conventions, or both.
//!
//! Invariants: nothing is sent unless an endpoint is configured. A push reads the snapshot as a scrape does, so it never
//! calls the driver and never waits for a lane. At most one push is in memory; it is tried again for a limited time and
//! then dropped. Redirects are not followed, what a response may contain is bounded, and headers are never shown.

mod batch;
mod client;
mod conventions;
mod encoding;
mod error;
mod gpus;
mod headers;
mod ledger;
mod list;
mod origin;
mod pusher;
mod resource;
mod settings;

pub use client::check;
pub use error::Error;
pub use pusher::Pusher;
pub use settings::Settings;
