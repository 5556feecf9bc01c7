//! Services and their API keys.

mod change;
mod create;
mod read;
mod transfer;

pub use change::{ServiceChange, change_service, delete_service};
pub(in crate::operations) use create::already_managed;
pub use create::{NewService, NewServiceKey, create_service, create_service_key, revoke_service_key};
pub use read::{find_service_of_resource, list_service_keys, list_services, read_resource_uris};
pub use transfer::{accept_service, list_service_offers, offer_service, read_service_offer, withdraw_service_offer};
