//! The error type that the operations of the control plane return.

use crate::{
    domain::{client_assertion::InvalidAssertion, quota::ExceededQuota},
    keyring::KeyringError,
    store::{StoreError, StoreFailure},
};
use countersign_identity::{Reason, Refusal};
use std::sync::Arc;

/// The kind of resource that does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotFound {
    /// The requested agent does not exist.
    Agent,
    /// The requested service does not exist.
    Service,
    /// The service is not offered to another person.
    Transfer,
    /// The service has no role with the requested id.
    Role,
    /// The service has no API key with the requested id.
    Key,
    /// The requested signing key does not exist.
    SigningKey,
    /// The scope (the service, or the whole Countersign deployment) has no webhook with the requested id.
    Webhook,
    /// The webhook has no delivery of the requested event.
    Delivery,
}

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum OperationError {
    /// The request is refused for one of the documented reasons.
    #[error("refused: {}", .0.reason.as_str())]
    Refused(Refusal),
    /// The signature is malformed or wrong.
    #[error("invalid signature")]
    InvalidSignature,
    /// The client assertion is malformed, or a claim is wrong.
    #[error("invalid client assertion: {0}")]
    InvalidAssertion(InvalidAssertion),
    /// A resource in the request does not exist.
    #[error("not found: {0:?}")]
    NotFound(NotFound),
    /// The request conflicts with the current state.
    #[error("conflict: {0}")]
    Conflict(String),
    /// The request would exceed a quota.
    #[error("exceeded quota: {0:?}")]
    QuotaExceeded(ExceededQuota),
    /// The owner of the agent has left the service, which therefore may assign no role to the agent.
    #[error("the agent has left the service")]
    AgentLeft,
    /// The idempotency key was used for a different request.
    #[error("idempotency key reused")]
    IdempotencyKeyReused,
    /// A field is well-formed, but its value is not allowed.
    #[error("invalid field {field}: {message}")]
    Invalid {
        /// Name of the field.
        field: &'static str,
        /// The requirement for the value.
        message: &'static str,
    },
    /// The request may succeed later.
    #[error("busy: {0}")]
    Busy(&'static str),
    /// The database failed.
    #[error(transparent)]
    Store(StoreError),
    /// The keyring failed.
    #[error(transparent)]
    Keyring(Arc<KeyringError>),
}

impl StoreFailure for OperationError {
    fn store_error(&self) -> Option<&StoreError> {
        match self {
            Self::Store(error) => Some(error),
            Self::Keyring(_)
            | Self::Refused(_)
            | Self::InvalidSignature
            | Self::InvalidAssertion(_)
            | Self::NotFound(_)
            | Self::Conflict(_)
            | Self::QuotaExceeded(_)
            | Self::AgentLeft
            | Self::IdempotencyKeyReused
            | Self::Invalid { .. }
            | Self::Busy(_) => None,
        }
    }
}

impl From<StoreError> for OperationError {
    fn from(error: StoreError) -> Self {
        // The service was deleted after the caller was authorized.
        if error.is_sealed_audit_chain() { Self::NotFound(NotFound::Service) } else { Self::Store(error) }
    }
}

impl From<KeyringError> for OperationError {
    fn from(error: KeyringError) -> Self {
        match error {
            KeyringError::Store(error) => error.into(),
            error @ (KeyringError::Undecryptable(_) | KeyringError::NoKey | KeyringError::Crypto) => {
                Self::Keyring(Arc::new(error))
            }
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
