//! Every way in which an operation can end without being done.

use crate::{
    keyring::KeyringError,
    store::{StoreError, StoreFailure},
};
use countersign_identity::{Reason, Refusal};

/// What an id did not lead to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotFound {
    /// No such agent.
    Agent,
    /// No such service.
    Service,
    /// No such role at this service.
    Role,
    /// No such API key at this service.
    Key,
    /// No such signing key.
    SigningKey,
    /// No such target of events at this place.
    Webhook,
    /// Nothing was delivered to this target under this id.
    Delivery,
}

/// Why an operation was not done.
#[derive(Debug, thiserror::Error)]
pub enum OperationError {
    /// Refused for a reason of the closed list.
    #[error("refused: {}", .0.reason.as_str())]
    Refused(Refusal),
    /// The signature does not fit the challenge, or is none.
    #[error("invalid signature")]
    InvalidSignature,
    /// What the request names does not exist.
    #[error("missing: {0:?}")]
    NotFound(NotFound),
    /// It contradicts what is there.
    #[error("conflict: {0}")]
    Conflict(String),
    /// The key of the request was used for another one.
    #[error("idempotency key reused")]
    IdempotencyKeyReused,
    /// A field is well-formed but cannot be accepted now.
    #[error("invalid field {field}: {message}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// What it must be.
        message: &'static str,
    },
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The keyring failed.
    #[error(transparent)]
    Keyring(KeyringError),
}

impl StoreFailure for OperationError {
    fn store_error(&self) -> Option<&StoreError> {
        match self {
            Self::Store(error) => Some(error),
            Self::Keyring(_)
            | Self::Refused(_)
            | Self::InvalidSignature
            | Self::NotFound(_)
            | Self::Conflict(_)
            | Self::IdempotencyKeyReused
            | Self::Invalid { .. } => None,
        }
    }
}

impl From<KeyringError> for OperationError {
    fn from(error: KeyringError) -> Self {
        match error {
            KeyringError::Store(error) => Self::Store(error),
            error @ (KeyringError::Sealed(_) | KeyringError::NoKey | KeyringError::Crypto) => Self::Keyring(error),
        }
    }
}

impl From<Reason> for OperationError {
    fn from(reason: Reason) -> Self {
        Self::Refused(reason.into())
    }
}

impl From<Refusal> for OperationError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}
