//! Limits how many streams to this control plane the sidecars of an owner may have open, and how many they may open in a minute.

use crate::{
    domain::{agent::OwnerHash, service::ServiceKey},
    ephemeral::{CallerKind, MemoryRateLimiter, Quota, RateLimit, RateLimitKey, RateLimiter as _},
};
use countersign_process::{Clock, NoPlace, Place, Places};
use prometheus::IntCounterVec;
use std::{sync::Arc, time::Duration};
use tonic::Status;

/// A control plane may have this many streams per connection to its sync port: a sidecar has a stream for each of its services.
const STREAMS_PER_CONNECTION: usize = 2;

/// The sidecars of one owner may have a quarter of all streams, so that sidecars of other owners can connect, too.
const OWNER_PART: usize = 4;

/// The number of streams that an owner may open in a minute, as a multiple of the number that it may have open.
const OPENED_PER_MINUTE: u32 = 2;

/// An open stream counts towards the limits until its `StreamPlace` is dropped.
pub(super) type StreamPlace = Place<OwnerHash>;

/// The names of the limits in metrics.
pub const STREAM_LIMITS: [&str; 3] = ["owner", "owner_rate", "process"];

pub(super) struct StreamLimits {
    places: Places<OwnerHash>,
    total: usize,
    per_owner: usize,
    opened: MemoryRateLimiter,
    /// Counts refused streams, by limit.
    refused: IntCounterVec,
}

impl StreamLimits {
    /// The limits of a sync port with this number of connections.
    pub(super) fn new(connections: usize, clock: Arc<dyn Clock>, refused: IntCounterVec) -> Self {
        let total = connections * STREAMS_PER_CONNECTION;
        let per_owner = (total / OWNER_PART).max(1);
        Self { places: Places::new(total, per_owner), total, per_owner, opened: MemoryRateLimiter::new(clock), refused }
    }

    /// Counts a new stream, or refuses it, so that its sidecar tries the next control plane.
    pub(super) async fn open(&self, key: &ServiceKey) -> Result<StreamPlace, Status> {
        let Self { total, per_owner, .. } = self;
        let owner = OwnerHash::of(&key.owner);
        let max_calls = u32::try_from(*per_owner).unwrap_or(u32::MAX).saturating_mul(OPENED_PER_MINUTE);
        let limit = RateLimit {
            key: RateLimitKey::new(CallerKind::Authenticated, &[&owner.bytes()]),
            quota: Quota { max_calls, window: Duration::from_mins(1) },
        };
        if !self.opened.acquire(&[limit]).await.allowed {
            let message = format!("the owner of the service opens more than {max_calls} streams a minute");
            return Err(self.refuse("owner_rate", &message));
        }
        self.places.try_enter(owner).map_err(|full| match full {
            NoPlace::OfKey => {
                self.refuse("owner", &format!("the owner of the service already has {per_owner} open streams"))
            }
            NoPlace::AtAll => self.refuse("process", &format!("the control plane already has {total} open streams")),
        })
    }

    fn refuse(&self, limit: &str, message: &str) -> Status {
        self.refused.with_label_values(&[limit]).inc();
        Status::resource_exhausted(format!("{message} (connections.max)"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{agent::Owner, credential::SecretHash, service::KeyScope};
    use countersign_identity::{ApiKeyId, ServiceId, Timestamp};
    use countersign_test_engines::ManualClock;
    use prometheus::Opts;

    fn key_of(owner: &str) -> ServiceKey {
        ServiceKey {
            id: ApiKeyId::from_bits(1),
            service: ServiceId::from_bits(1),
            owner: Owner { issuer: "https://issuer.example".to_owned(), subject: owner.to_owned() },
            name: "key".to_owned().try_into().unwrap(),
            scope: KeyScope::Sync,
            managed_by: None,
            secret: SecretHash::from_store("hash".to_owned()),
            created_at: Timestamp::from_micros(0),
            revoked_at: None,
        }
    }

    #[tokio::test]
    async fn owner_has_a_part_of_the_streams_and_opens_twice_as_many_in_a_minute() {
        let clock = ManualClock::new();
        let refused = IntCounterVec::new(Opts::new("refused", "refused streams"), &["limit"]).unwrap();
        let limits = StreamLimits::new(4, clock.clone(), refused.clone());
        let open = async |owner| limits.open(&key_of(owner)).await.map_err(|status| status.message().to_owned());
        let of_anna = [open("anna").await.unwrap(), open("anna").await.unwrap()];
        assert!(open("anna").await.err().unwrap().contains("already has 2 open streams (connections.max)"));
        let mut of_others = Vec::new();
        for owner in ["bob", "carol", "dave"] {
            of_others.extend([open(owner).await.unwrap(), open(owner).await.unwrap()]);
        }
        assert!(open("erin").await.err().unwrap().contains("already has 8 open streams (connections.max)"));
        drop((of_anna, of_others));
        drop(open("anna").await.unwrap());
        assert!(open("anna").await.err().unwrap().contains("more than 4 streams a minute"));
        drop(open("bob").await.unwrap());
        clock.advance(Duration::from_mins(1));
        drop(open("anna").await.unwrap());
        assert_eq!(STREAM_LIMITS.map(|limit| refused.with_label_values(&[limit]).get()), [1, 1, 1]);
    }
}
