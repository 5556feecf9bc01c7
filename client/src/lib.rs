//! Client library for Countersign: agent keys, login, and the API requests of services, human users and administrators.
//!
//! The library depends on the HTTP API of the control plane. The command `countersign` depends on this library. Invariant: a
//! private key never leaves [`key::PrivateKey`] or the external [`signer::SignerCommand`], and `Debug` prints no secret.
//!
//! [`key`] and [`signer`] sign challenges and client assertions. [`api`] has one method per request. [`session`] logs in and refreshes
//! tokens, with challenges or over the OAuth token endpoint; [`scope`] limits their permissions. [`oidc`] obtains tokens of human users
//! from their OIDC issuer. [`profile`] stores settings and tokens between processes. [`webhook`] verifies webhook requests at a service.

pub mod api;
mod client_assertion;
pub mod clock;
pub mod key;
pub mod oidc;
pub mod profile;
pub mod scope;
pub mod session;
pub mod signer;
pub mod webhook;

pub use api::{Api, ApiError, TokenRequest, Tokens};
pub use key::{KeyError, PrivateKey};
pub use oidc::{IssuerError, OidcClient};
pub use profile::{Profile, ProfileError, Profiles};
pub use scope::Scope;
pub use session::{LoginMethod, Session, SessionTokens};
pub use signer::{Sign, Signer, SignerCommand};
pub use webhook::{Verifier, WebhookError, WebhookSecret};
