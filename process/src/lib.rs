//! What the control plane and the sidecar share: settings, logs, metrics, clock, random numbers, readiness, places that callers
//! share, HTTP server, TLS certificate, admin port, reloading of files, output, shutdown.
//!
//! Invariant: no module of this crate depends on agents, services or tokens.

pub mod admin;
pub mod certificates;
pub mod clock;
pub mod file_reload;
mod log_lines;
pub mod output;
mod places;
pub mod readiness;
pub mod rng;
pub mod server;
pub mod settings;
pub mod shutdown;
pub mod telemetry;

pub use clock::{BootId, Clock, SystemClock};
pub use log_lines::FlushAtExit;
pub use places::{NoPlace, Place, Places};
pub use readiness::{Readiness, ReadinessGuard};
pub use rng::{Rng, SystemRng, generate_p256_key};
pub use shutdown::Shutdown;
