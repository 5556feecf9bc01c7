//! What sidecars follow: every change, in commit order, with its present content.
//!
//! [`feed`] reads what changed once for all followers, [`encode`] says it in the wire's words, and
//! [`service`] runs a stream per follower. Neighbours: `store` below, `ext-authz` at the other end. The
//! rule of the room: revisions are read before content, so that content is never older than its stamp.

mod change_batch;
mod encode;
mod feed;
mod follower;
mod service;

pub use feed::Reader;
pub use follower::Terms;
pub use service::SyncService;
