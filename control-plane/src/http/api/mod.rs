//! The endpoints, one file per resource.

pub(super) mod agents;
pub(super) mod assignments;
pub mod audit; // `audit export` prints the same records.
pub(super) mod auth;
pub(super) mod health;
pub(super) mod oauth;
pub(super) mod own_agents;
mod prelude;
pub(super) mod protected_resource;
pub(super) mod roles;
pub(super) mod service_keys;
pub(super) mod services;
pub(super) mod sidecars;
pub(super) mod signing_keys;
pub(super) mod status;
pub(super) mod transfers;
pub(super) mod trust;
pub(super) mod verify;
pub(super) mod webhooks;
pub(super) mod well_known;
