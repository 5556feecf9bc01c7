//! Declared state: files that describe services, and the plan of the changes that make them true.
//!
//! [`file`] reads the files. [`plan`] compares them with what exists, and sends no request. Invariant: the plan of a state that
//! fulfils the files is empty.

pub mod file;
pub mod plan;

pub use file::{DeclaredKey, DeclaredRole, DeclaredService, DeclaredWebhook, Document, FileError, Match};
pub use plan::{Change, Existing, ExistingService, Options, Plan, PlanError, SecretState, plan};
