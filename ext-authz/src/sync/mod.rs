//! Follows the control plane: one stream for each API key, and so for each service.
//!
//! [`client`] opens streams and decides when to reconnect, [`session`] turns messages into views, [`decode`] parses
//! messages. Invariant: a message that is not fully valid changes nothing and ends its stream. The next stream resumes at
//! the last applied revision.

pub mod client;
pub mod decode;
mod session;

pub use client::{Follower, SyncTarget};
pub use decode::MessageError;
