//! The sync service: streams every change to the sidecars, in commit order.
//!
//! [`SyncService`] runs one `Follower` per stream. [`FeedReader`] reads new changes from the store once, and distributes each to the
//! streams that it concerns. `page_reader` reads snapshots and missed changes in pages, `page_cache` shares them among the streams of a
//! service, and `encode` converts changes to messages. This module depends on `store`.
//!
//! Invariant: we read a revision before the state that is sent with it, so the state is never older than its revision. Changes up
//! to the *floor* of the feed may be deleted. Only services that accept *unbound* tokens (tokens for no service) receive changes
//! that concern unbound tokens.

mod catch_up;
mod change_batch;
mod context;
mod encode;
mod feed;
mod follower;
mod page_cache;
mod page_reader;
mod pings;
mod service;
mod stream_limits;

pub use context::{KEY_CHECK_INTERVAL, SidecarSettings, SyncParts};
pub use feed::{FeedReader, POLL_INTERVAL};
pub use service::{CHANGES_PER_READ, SyncService};
pub use stream_limits::STREAM_LIMITS;
