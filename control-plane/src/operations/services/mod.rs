//! Services and their API keys.

mod change;
mod create;
mod delete;
mod list;
mod resources;
mod transfer;

pub use change::{ServiceChange, change_service};
pub(in crate::operations) use create::already_managed;
pub use create::{NewService, NewServiceKey, create_service, create_service_key, revoke_service_key};
pub use delete::delete_service;
pub use list::{list_service_keys, list_services};
pub use resources::{find_service_of_resource, read_resource_uris};
pub use transfer::{accept_service, list_service_offers, offer_service, read_service_offer, withdraw_service_offer};
