//! Idempotent requests: the response is stored in the transaction that does the work, and replayed when the request is sent
//! again.

use super::OperationError;
use crate::{
    domain::{
        audit::Initiator,
        idempotency::{IdempotentRequest, RequestFingerprint, StoredResponse},
    },
    store::{StoreError, WriteTransaction, idempotency},
};
use serde::{Serialize, de::DeserializeOwned};

/// The conversion of the result of an operation to a response, and the idempotency key of the request, if any.
#[derive(Debug)]
pub struct IdempotentReply<T, R> {
    /// Idempotency key and body digest; `None` if the request has no idempotency key.
    pub request: Option<IdempotentRequest>,
    /// Converts the result to the response body.
    pub present: fn(&T) -> R,
}

/// Finds and stores the response to one request.
pub(in crate::operations) struct IdempotencyGuard<T, R> {
    fingerprint: Option<RequestFingerprint>,
    present: fn(&T) -> R,
}

impl<T, R: Serialize + DeserializeOwned> IdempotentReply<T, R> {
    /// Creates the guard for a caller and an operation. `operation` is the name of the operation with the ids of its objects.
    pub(in crate::operations) fn guard(&self, initiator: &Initiator, operation: &[&str]) -> IdempotencyGuard<T, R> {
        let (kind, issuer, id) = initiator.actor.kind_issuer_and_id();
        let caller = [Some(kind), issuer, id.as_deref()];
        let scope: Vec<_> = caller.into_iter().chain(operation.iter().copied().map(Some)).collect();
        IdempotencyGuard {
            fingerprint: self.request.as_ref().map(|request| request.fingerprint(&scope)),
            present: self.present,
        }
    }
}

impl<T, R: Serialize + DeserializeOwned> IdempotencyGuard<T, R> {
    /// Returns the stored response if the request was completed before. Must be the first query of the transaction, so that a
    /// concurrent request with the same fingerprint waits until the transaction ends.
    pub(in crate::operations) async fn stored_response(
        &self,
        tx: &mut WriteTransaction,
    ) -> Result<Option<R>, OperationError> {
        let Some(fingerprint) = &self.fingerprint else { return Ok(None) };
        let now = tx.now();
        match idempotency::claim_key(tx.conn(), fingerprint, now).await? {
            StoredResponse::New => Ok(None),
            StoredResponse::Completed(response) => {
                let stored = serde_json::from_str(&response).map_err(|_| StoreError::Corrupt("response"))?;
                Ok(Some(stored))
            }
            StoredResponse::BodyDiffers => Err(OperationError::IdempotencyKeyReused),
        }
    }

    /// Converts the result to the response body and stores the body.
    pub(in crate::operations) async fn store_response(
        &self,
        tx: &mut WriteTransaction,
        result: &T,
    ) -> Result<R, OperationError> {
        let response = (self.present)(result);
        if let Some(fingerprint) = &self.fingerprint {
            let text = serde_json::to_string(&response).map_err(|_| StoreError::Corrupt("response"))?;
            idempotency::set_response(tx.conn(), fingerprint, &text).await?;
        }
        Ok(response)
    }
}
