//! What makes a server of ours a good process, written once for both of them: layered settings, logs,
//! the clock and the dice, readiness, an admin port, a graceful stop.
//!
//! Neighbours: `control-plane` and `ext-authz` build on it. The rule of the room: nothing here knows
//! what an agent is.

pub mod admin;
pub mod clock;
pub mod readiness;
pub mod rng;
pub mod settings;
pub mod shutdown;
pub mod telemetry;

pub use clock::{Clock, SystemClock};
pub use readiness::{Readiness, ReadinessGuard};
pub use rng::{Rng, SystemRng, generate_p256_key};
pub use shutdown::Shutdown;
