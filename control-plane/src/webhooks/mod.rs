//! Delivery of events: at least once, signed, to nobody who must not be reached.
//!
//! Neighbours: `store` holds the queue; `operations` put events into it, and ask the [`Guard`] before they accept a
//! target. The rule of the room: a target that is slow or dead costs the others nothing, and every connection goes to
//! an address that was checked for it.

mod courier;
mod guard;
mod lane;
mod post;
mod pulse;
mod sorter;

pub use courier::{Courier, CourierRules};
pub use guard::{Found, Guard, Names, SystemNames};
pub use post::Post;
pub use pulse::{Pulse, QueueHealth};
pub use sorter::Sorter;
