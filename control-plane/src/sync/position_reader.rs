//! Reads the position of the change feed for the pings of all streams: each ping needs a position that is read after the ping
//! arrived.

use super::coalesced_reads::{CoalescedReads, Source};
use crate::{
    domain::change::FeedPosition,
    store::{Store, StoreError, feed},
};

/// Requests reads of the position.
pub(super) type PositionReader = CoalescedReads<PositionSource>;

/// Reads the position.
pub(super) struct PositionSource(pub(super) Store);

impl Source for PositionSource {
    type Request = ();
    type Response = FeedPosition;

    async fn read(&self, requests: Vec<()>) -> Result<Vec<FeedPosition>, StoreError> {
        let position = feed::position(self.0.read().await?.conn()).await?;
        Ok(vec![position; requests.len()])
    }
}
