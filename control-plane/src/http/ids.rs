//! Ids in paths and bodies. One that does not parse does not exist: the 404 of its kind.

use super::error::ApiError;
use crate::operations::Missing;
use countersign_identity::{AgentId, KeyId, RoleId, ServiceId};
use std::str::FromStr;

/// An id and the error that says it leads nowhere.
pub trait PathId: FromStr {
    /// What is missing then.
    const KIND: Missing;
}

impl PathId for AgentId {
    const KIND: Missing = Missing::Agent;
}

impl PathId for ServiceId {
    const KIND: Missing = Missing::Service;
}

impl PathId for KeyId {
    const KIND: Missing = Missing::Key;
}

impl PathId for RoleId {
    const KIND: Missing = Missing::Role;
}

/// Reads an id.
pub fn id<T: PathId>(text: &str) -> Result<T, ApiError> {
    text.parse().map_err(|_| ApiError::missing(T::KIND))
}

/// Reads an id that may be left out.
pub fn optional_id<T: PathId>(text: Option<String>) -> Result<Option<T>, ApiError> {
    text.map(|text| id(&text)).transpose()
}
