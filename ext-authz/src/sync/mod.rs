//! Receives the sync streams of the control plane. There is one stream for each API key in the settings.
//!
//! [`client`] opens streams and reconnects, [`stream`] applies messages to views (the local data of services), and
//! [`decode`] parses messages. Invariant: a sync message with an invalid part does not change the local data and ends
//! its stream. The next stream resumes at the last applied revision.

pub mod client;
pub mod decode;
mod stream;

pub use client::{StreamClient, SyncTarget};
pub use decode::MessageError;
