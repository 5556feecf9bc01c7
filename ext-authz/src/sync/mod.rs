//! Follows the control plane: one stream for each API key, and so for each service.
//!
//! Neighbours: [`client`] speaks with the control plane and decides when to begin again, [`session`]
//! turns what one stream says into views, [`decode`] reads messages; `view` is what comes of it. The
//! rule of the room: a message that is not understood to the last field changes nothing, and ends its
//! stream; the next one resumes from the last revision that was understood.

pub mod client;
pub mod decode;
mod session;

pub use client::{Follower, Target};
pub use decode::MessageError;
