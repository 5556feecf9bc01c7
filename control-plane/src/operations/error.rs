//! The error type that the operations of the control plane return.

use crate::{
    domain::{client_assertion::InvalidAssertion, quota::ExceededQuota, role::IdentityTooLarge},
    keyring::KeyringError,
    store::{StoreError, StoreFailure},
};
use countersign_identity::{Reason, Refusal};
use std::sync::Arc;

/// The kind of resource that does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotFound {
    Agent,
    Service,
    /// The service is not offered to another person.
    Transfer,
    Role,
    Key,
    SigningKey,
    /// The scope (the service, or the whole Countersign deployment) has no webhook with the requested id.
    Webhook,
    Delivery,
}

#[derive(Debug, thiserror::Error)]
pub enum OperationError {
    /// The request is refused for one of the documented reasons.
    #[error("refused: {}", .0.reason.as_str())]
    Refused(Refusal),
    #[error("invalid signature")]
    InvalidSignature,
    /// The client assertion is malformed, or a claim is wrong.
    #[error("invalid client assertion: {0}")]
    InvalidAssertion(InvalidAssertion),
    #[error("not found: {0:?}")]
    NotFound(NotFound),
    /// The request conflicts with the current state.
    #[error("conflict: {0}")]
    Conflict(String),
    #[error("exceeded quota: {0:?}")]
    QuotaExceeded(ExceededQuota),
    /// The owner of the agent has left the service, so the service cannot assign roles to the agent.
    #[error("the agent has left the service")]
    AgentLeft,
    /// The idempotency key was used for a different request.
    #[error("idempotency key reused")]
    IdempotencyKeyReused,
    /// A field is well-formed, but its value is not allowed.
    #[error("invalid field {field}: {message}")]
    Invalid { field: &'static str, message: &'static str },
    /// The request may succeed later.
    #[error("busy: {0}")]
    Busy(&'static str),
    #[error(transparent)]
    Store(StoreError),
    #[error(transparent)]
    Keyring(Arc<KeyringError>),
}

impl StoreFailure for OperationError {
    fn store_error(&self) -> Option<&StoreError> {
        if let Self::Store(error) = self { Some(error) } else { None }
    }
}

impl From<StoreError> for OperationError {
    fn from(error: StoreError) -> Self {
        // Only the chain of a deleted service is sealed: somebody has deleted the service since we authorized the caller.
        if matches!(error, StoreError::AuditChainSealed) {
            Self::NotFound(NotFound::Service)
        } else {
            Self::Store(error)
        }
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

impl From<NotFound> for OperationError {
    fn from(not_found: NotFound) -> Self {
        Self::NotFound(not_found)
    }
}

impl From<ExceededQuota> for OperationError {
    fn from(quota: ExceededQuota) -> Self {
        Self::QuotaExceeded(quota)
    }
}

impl From<IdentityTooLarge> for OperationError {
    fn from(error: IdentityTooLarge) -> Self {
        Self::Conflict(error.to_string())
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
