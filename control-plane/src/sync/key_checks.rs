//! Checks whether the API keys of open streams are still valid.
//!
//! Checks that arrive while a read runs share the next read, and at most one read runs at a time. So the streams of a process use
//! at most one connection to the database, also when the settings of a service with many streams change.

use super::context::{database_unavailable, shutting_down};
use crate::store::{Store, StoreError, services};
use countersign_identity::ApiKeyId;
use countersign_process::Shutdown;
use std::collections::HashSet;
use tokio::sync::{mpsc, oneshot};
use tonic::Status;

/// Maximum number of waiting checks; further streams wait until there is space.
const MAX_WAITING: usize = 1024;

struct KeyCheck {
    key: ApiKeyId,
    reply: oneshot::Sender<Result<bool, Status>>,
}

/// Requests checks.
#[derive(Clone)]
pub(super) struct KeyChecks(mpsc::Sender<KeyCheck>);

impl KeyChecks {
    /// Starts the task that checks API keys until shutdown is requested.
    pub(super) fn start(store: Store, shutdown: Shutdown) -> Self {
        let (sender, checks) = mpsc::channel(MAX_WAITING);
        tokio::spawn(serve(store, checks, shutdown));
        Self(sender)
    }

    /// Whether an API key is valid at some time after this call.
    pub(super) async fn is_valid(&self, key: ApiKeyId) -> Result<bool, Status> {
        let (reply, result) = oneshot::channel();
        self.0.send(KeyCheck { key, reply }).await.map_err(|_| shutting_down())?;
        result.await.map_err(|_| shutting_down())?
    }
}

async fn serve(store: Store, mut checks: mpsc::Receiver<KeyCheck>, shutdown: Shutdown) {
    let mut waiting = Vec::new();
    loop {
        tokio::select! {
            () = shutdown.requested() => return,
            count = checks.recv_many(&mut waiting, MAX_WAITING) => if count == 0 { return },
        }
        let keys = waiting.iter().map(|check| check.key).collect();
        let valid = find_valid(&store, keys).await.map_err(|error| database_unavailable(&error));
        for KeyCheck { key, reply } in waiting.drain(..) {
            let result = valid.as_ref().map(|valid| valid.contains(&key)).map_err(Clone::clone);
            // Sending fails if the stream has ended, which is no problem.
            let _ignored = reply.send(result);
        }
    }
}

async fn find_valid(store: &Store, keys: HashSet<ApiKeyId>) -> Result<HashSet<ApiKeyId>, StoreError> {
    let keys: Vec<_> = keys.into_iter().collect();
    let mut valid = HashSet::new();
    let mut read = store.read().await?;
    for batch in keys.chunks(services::KEYS_PER_CHECK) {
        valid.extend(services::find_valid_keys(read.conn(), batch).await?);
    }
    Ok(valid)
}
