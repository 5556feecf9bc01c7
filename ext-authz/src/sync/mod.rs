//! Receives the sync streams of the control plane. There is one stream for each API key in the settings.
//!
//! [`client`] reconnects and publishes views, [`addresses`] decides which address is tried when, [`connection`] is a stream at one
//! address, [`stream`] applies messages to views (the local data of services), [`decode`] parses messages, and [`pages`] encodes a
//! view for its copy on disk. Invariant: a sync message with an invalid part does not change the local data and ends
//! its stream. The next stream resumes at the last applied revision.

mod addresses;
pub mod client;
mod connection;
pub mod decode;
pub mod pages;
mod stream;

pub use addresses::AddressPlan;
pub use client::{StartFromCopy, StreamClient};
pub use connection::SyncTarget;
pub use decode::MessageError;
