//! The copy of a view on disk, with which a sidecar decides if it starts while the control plane is unreachable.
//!
//! Each API key has one file, in a directory that the process has locked ([`lock`]). [`file`] reads and writes this file, [`seal`]
//! encrypts it, [`contact`] says how old it is, [`writer`] decides when it is written, and [`startup`] opens it. Invariants: a copy
//! contains the time of its last confirmation, and is not used once that time is `max_staleness` ago. A copy that cannot be used is
//! rejected with a reason. Opening a copy never changes it.

mod contact;
mod file;
mod lock;
mod seal;
mod startup;
mod writer;

pub use crate::metrics::CopyRejection;
pub use contact::Contact;
pub use file::{CopyDirectory, Origin, path_in};
pub use lock::LockError;
pub use seal::CopyKey;
pub use startup::view_without_contact;
pub use writer::{CopyWriter, WriterState, copy_interval};

#[cfg(test)]
mod tests;
