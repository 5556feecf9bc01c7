//! Receives the sync streams of the control plane. There is one stream for each API key in the settings.
//!
//! [`client`] reconnects and publishes views. [`addresses`] decides which address is tried when, and [`key_refusals`] whether any
//! address knows the API key. [`key_inquiry`] asks to which service an API key belongs. [`connection`] is a stream at one address, [`requests`] sends its messages, and [`instance`] names
//! the process in them. [`decode`] parses received messages, and [`stream`] applies them to views. [`pages`] encodes a view for its
//! copy on disk. [`copy_progress`] makes the report of a revision wait until the copy contains it. Invariant: a message with an
//! invalid part changes nothing and ends its stream. The next stream resumes at the last applied revision.

mod addresses;
mod client;
mod connection;
mod copy_progress;
pub mod decode;
mod instance;
mod key_inquiry;
mod key_refusals;
pub mod pages;
mod requests;
mod stream;

pub use addresses::AddressPlan;
pub use client::{FutureView, StreamClient};
pub use connection::{Authorization, SyncTarget};
pub use copy_progress::CopyProgress;
pub use decode::MessageError;
pub use instance::{INSTANCE_LEN, Instance, ProcessIdentity};
pub use key_inquiry::{KeyInquiryError, service_of_key};
