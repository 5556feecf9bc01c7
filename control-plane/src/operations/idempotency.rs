//! Do a request once, however often it is sent: it is remembered in the transaction in which it is done.

use super::OperationError;
use crate::{
    domain::{
        audit::Initiator,
        idempotency::{Memory, Repeat, Ticket},
    },
    store::{StoreError, Write, idempotency},
};
use serde::{Serialize, de::DeserializeOwned};

/// How an operation is answered, and whether its request may come again.
#[derive(Debug)]
pub struct Reply<T, R> {
    /// What its sender calls the request, if it shall be done once.
    pub repeat: Option<Repeat>,
    /// The answer.
    pub present: fn(&T) -> R,
}

/// A reply to a certain caller's certain request.
pub(in crate::operations) struct Once<T, R> {
    ticket: Option<Ticket>,
    present: fn(&T) -> R,
}

impl<T, R: Serialize + DeserializeOwned> Reply<T, R> {
    /// The reply to what `by` asks for.
    pub(in crate::operations) fn to(&self, by: &Initiator, what: &[&str]) -> Once<T, R> {
        let (kind, issuer, id) = by.actor.parts();
        let who = [Some(kind), issuer, id.as_deref()];
        let scope: Vec<_> = who.into_iter().chain(what.iter().copied().map(Some)).collect();
        Once { ticket: self.repeat.as_ref().map(|repeat| repeat.ticket(&scope)), present: self.present }
    }
}

impl<T, R: Serialize + DeserializeOwned> Once<T, R> {
    /// What was answered before. Asked first: whoever sends the same request waits until the transaction ends.
    pub(in crate::operations) async fn before(&self, tx: &mut Write) -> Result<Option<R>, OperationError> {
        let Some(ticket) = &self.ticket else { return Ok(None) };
        let now = tx.now();
        match idempotency::claim(tx.conn(), ticket, now).await? {
            Memory::New => Ok(None),
            Memory::Done(response) => {
                let read = serde_json::from_str(&response).map_err(|_| StoreError::Corrupt("response"))?;
                Ok(Some(read))
            }
            Memory::Reused => Err(OperationError::IdempotencyKeyReused),
        }
    }

    /// The answer to what was done now, which is kept with it.
    pub(in crate::operations) async fn after(&self, tx: &mut Write, done: &T) -> Result<R, OperationError> {
        let answer = (self.present)(done);
        if let Some(ticket) = &self.ticket {
            let text = serde_json::to_string(&answer).map_err(|_| StoreError::Corrupt("response"))?;
            idempotency::set_response(tx.conn(), ticket, &text).await?;
        }
        Ok(answer)
    }
}
