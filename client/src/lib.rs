//! What talks to Countersign: an agent's key, and the calls that turn it into tokens; the calls of services
//! and people that manage roles.
//!
//! Neighbours: the control plane's HTTP API on the other side; the command line `countersign` on this
//! one. The rule of the room: a private key never leaves [`key::PrivateKey`] or whatever a
//! [`signer::SignerCommand`] asks; tokens are never printed unless asked for.
//!
//! Reading order: [`key`] and [`signer`] answer challenges; [`api`] is one request each; [`session`] keeps a
//! login alive; [`profile`] is what is remembered between processes. [`webhook`] is for services that receive events.

pub mod api;
pub mod clock;
pub mod key;
pub mod profile;
pub mod session;
pub mod signer;
pub mod webhook;

pub use api::{Api, ApiError, Tokens};
pub use key::{KeyError, PrivateKey};
pub use profile::{Profile, ProfileError, Profiles};
pub use session::{Held, Session};
pub use signer::{Sign, Signer, SignerCommand};
pub use webhook::{Verifier, WebhookError, WebhookSecret};
