//! The sync service: streams every change to the sidecars, in commit order.
//!
//! [`FeedReader`] reads changes from the store once for all streams and distributes each to the streams that it concerns,
//! `encode` converts changes to messages, and [`SyncService`] runs one `Follower` per stream. This module depends on `store`. Invariant: a revision is read before the state that is sent
//! with it, so the state is never older than its revision.

mod change_batch;
mod context;
mod encode;
mod feed;
mod follower;
mod position_reader;
mod service;

pub use context::{AgentHashSecret, SidecarSettings};
pub use feed::{FeedReader, POLL_INTERVAL};
pub use service::SyncService;
