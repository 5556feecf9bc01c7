//! Divides database reads fairly among services and their owners: at most one read per service and two per owner run or wait for a
//! connection. So a service with hundreds of streams delays another service by one read only, and a person with hundreds of services
//! delays those of others by two reads.

use super::{
    context::{database_unavailable, shutting_down},
    page_reader::StreamGroup,
};
use crate::{domain::agent::OwnerHash, store::StoreError};
use countersign_identity::ServiceId;
use countersign_process::{FairTurn, FairTurns};
use tokio::sync::AcquireError;
use tonic::Status;

/// Maximum number of reads at the same time. When many sidecars connect at once, their reads must not use all database
/// connections.
const MAX_READS: usize = 2;

/// The reads that run and wait.
#[derive(Clone)]
pub(super) struct ReadTurns(FairTurns<OwnerHash, ServiceId>);

impl ReadTurns {
    pub(super) fn new() -> Self {
        Self(FairTurns::new(MAX_READS))
    }

    /// Waits until data of the service may be read, and reads it. The turn belongs to the read and not to the caller: a stream that
    /// ends does not end its read in the database, which still uses a connection.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        group: StreamGroup,
        read: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, Status> {
        let turn = self.acquire(group).await.map_err(|_| shutting_down())?;
        let read = tokio::spawn(async move {
            let result = read.await;
            drop(turn);
            result
        });
        // The task fails if the read panics, which is logged, or at the end of the process.
        let result = read.await.map_err(|_| Status::internal("the read has failed"))?;
        result.map_err(|error| database_unavailable(&error))
    }

    async fn acquire(&self, group: StreamGroup) -> Result<FairTurn<OwnerHash, ServiceId>, AcquireError> {
        self.0.take(group.owner, group.service).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::{sync::oneshot, time::timeout};

    #[tokio::test]
    async fn turn_lasts_until_the_read_ends_also_without_its_stream() {
        let (turns, (sender, receiver)) = (ReadTurns::new(), oneshot::channel());
        let (owner, service) = (OwnerHash::for_tests(1), ServiceId::from_bits(1));
        let group = StreamGroup { service, owner };
        let read = async {
            let _closed: Result<(), _> = receiver.await;
            Ok(())
        };
        timeout(Duration::from_millis(20), turns.read(group, read)).await.err().unwrap();
        timeout(Duration::from_millis(20), turns.acquire(group)).await.err().unwrap();
        drop(sender);
        turns.read(group, async { Ok(()) }).await.unwrap();
        while !turns.0.is_empty() {
            tokio::task::yield_now().await;
        }
    }
}
