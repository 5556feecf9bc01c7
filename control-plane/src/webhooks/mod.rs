//! Delivery of events: at least once, signed, to nobody who must not be reached.
//!
//! Neighbours: `store` holds the queue; `operations` put events into it, and ask the [`Guard`] before they accept a
//! target. The rule of the room: a target that is slow or dead costs the others nothing, and every connection goes to
//! an address that was checked for it.

mod delivery_queue;
mod dispatcher;
mod dispatcher_health;
mod event_fanout;
mod http_sender;
mod scheduler;
mod target_queue;

pub use dispatcher::{Courier, CourierRules};
pub use dispatcher_health::{Pulse, QueueHealth};
pub use event_fanout::Sorter;
pub use http_sender::{Post, PostError};
