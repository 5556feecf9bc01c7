//! Receives the sync streams of the control plane. There is one stream for each API key in the settings.
//!
//! [`client`] opens streams and reconnects, [`stream`] applies messages to views, and [`decode`] parses messages.
//! Invariant: a message with an invalid part changes no view and ends its stream. The next stream resumes at the last
//! applied revision.

pub mod client;
pub mod decode;
mod stream;

pub use client::{StreamClient, SyncTarget};
pub use decode::MessageError;
