//! Idempotent requests: the transaction that does the work also stores the response. If the client sends the request again, it gets
//! this response.

use super::OperationError;
use crate::{
    domain::{
        audit::Initiator,
        idempotency::{IdempotentRequest, RequestFingerprint, StoredResponse},
    },
    store::{StoreError, WriteTransaction, idempotency},
};
use serde::{Serialize, de::DeserializeOwned};

/// How an operation makes its response, and whether it stores the response, so that a repeated request gets it again.
#[derive(Debug)]
pub struct IdempotentResponse<T, R> {
    /// The idempotency key and the digest of the body. `None`: the request has no key, so nothing is stored.
    pub request: Option<IdempotentRequest>,
    /// Makes the response body from the result.
    pub present: fn(&T) -> R,
}

/// Finds and stores the response to one request.
pub(in crate::operations) struct IdempotencyGuard<T, R> {
    fingerprint: Option<RequestFingerprint>,
    present: fn(&T) -> R,
}

impl<T, R: Serialize + DeserializeOwned> IdempotentResponse<T, R> {
    /// Creates the guard for a caller and an operation. `operation` is the name of the operation, and the ids of its objects unless the
    /// body names them.
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
    /// Returns the stored response if the request was completed before. Call this first in the transaction, so that a concurrent
    /// request with the same fingerprint waits until the transaction ends.
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

    /// Makes the response body from the result, and stores it if the request has a key.
    pub(in crate::operations) async fn store_response(
        &self,
        tx: &mut WriteTransaction,
        result: &T,
    ) -> Result<R, OperationError> {
        let response = (self.present)(result);
        if let Some(fingerprint) = &self.fingerprint {
            // Our response bodies can always be serialized, so this error does not occur.
            let text = serde_json::to_string(&response).map_err(|_| StoreError::Corrupt("response"))?;
            idempotency::set_response(tx.conn(), fingerprint, &text).await?;
        }
        Ok(response)
    }
}
