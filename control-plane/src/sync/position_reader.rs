//! Reads the position of the change feed for the pings of all streams: each ping needs a position that is read after the ping
//! arrived, while nobody takes the control plane for killed.

use super::coalesced_reads::{CoalescedReads, Source};
use crate::{
    domain::change::FeedPosition,
    sidecars::Sidecars,
    store::{Store, StoreError, feed},
};

/// Requests reads of the position. The response is `None` if sidecars must not be confirmed.
pub(super) type PositionReader = CoalescedReads<PositionSource>;

/// Reads the position.
pub(super) struct PositionSource {
    pub(super) store: Store,
    pub(super) sidecars: Sidecars,
}

impl Source for PositionSource {
    type Request = ();
    type Response = Option<FeedPosition>;

    async fn read(&self, requests: Vec<()>) -> Result<Vec<Option<FeedPosition>>, StoreError> {
        let mut read = self.store.read().await?;
        let is_registered = self.sidecars.is_registered(&mut read).await?;
        let position = feed::position(read.conn()).await?;
        Ok(vec![is_registered.then_some(position); requests.len()])
    }
}
