//! Delivery of events to webhooks: at least once, signed, and only to addresses that the address guard allows.
//!
//! Operations store events in the outbox of `store`. [`fan_out_events`] creates one delivery per target from each event, and
//! [`WebhookDispatcher`] sends the deliveries with [`HttpSender`]. Invariants: A slow or failing target does not delay other targets.
//! An owner with many targets does not delay other owners. Every connection goes to an address that the guard has checked for it.

mod delivery_queue;
mod dispatcher;
mod dispatcher_health;
mod event_fanout;
mod http_sender;
mod pooled_hosts;
mod scheduler;
mod target_queue;

pub use dispatcher::WebhookDispatcher;
pub use dispatcher_health::DispatcherHealth;
pub use event_fanout::fan_out_events;
pub use http_sender::HttpSender;
pub use pooled_hosts::MAX_IDLE_CONNECTIONS;
pub use scheduler::ConcurrencyLimits;
