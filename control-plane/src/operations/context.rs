//! What every operation works with.

use super::SuppressedBursts;
use crate::{
    address_guard::AddressGuard,
    domain::{
        challenge::ChallengeKeys, credential::SECRET_LEN, signing_key::KeyRules, webhook::health::QueueHealthProbe,
    },
    keyring::Keyring,
    store::Store,
};
use countersign_identity::Timestamp;
use countersign_process::{Clock, Rng};
use std::{sync::Arc, time::Duration};
use tokio::sync::Notify;
use zeroize::Zeroizing;

/// What the operator decided.
#[derive(Debug, Clone)]
pub struct Rules {
    /// The `iss` of every token: the public URL.
    pub issuer: String,
    /// Life of an access token.
    pub access_life: Duration,
    /// Life of a login.
    pub refresh_life: Duration,
    /// Life of a challenge.
    pub challenge_life: Duration,
    /// When signing keys change.
    pub keys: KeyRules,
    /// How long events are kept.
    pub events_life: Duration,
    /// Whether agents may register without a human's token.
    pub public_registration: bool,
}

/// What every operation works with.
pub struct Context {
    /// The database.
    pub store: Store,
    /// The signing keys.
    pub keyring: Arc<Keyring>,
    /// The keys of challenges.
    pub challenge_keys: ChallengeKeys,
    /// What time it is.
    pub clock: Arc<dyn Clock>,
    /// The dice.
    pub rng: Arc<dyn Rng>,
    /// What the operator decided.
    pub rules: Rules,
    /// Rung when an agent's trust changed.
    pub trust_marked: Notify,
    /// Rejects webhook URLs that must not be reached.
    pub address_guard: AddressGuard,
    /// Wakes the webhook dispatcher when a delivery becomes due.
    pub dispatcher_wakeup: Arc<Notify>,
    /// Health of webhook delivery.
    pub queue_health: QueueHealthProbe,
    /// Failed logins that are counted instead of emitted.
    pub suppressed_bursts: SuppressedBursts,
}

impl Context {
    /// The time.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// A new identifier: the 128 bits of a `UUIDv7`, so that ids sort by their making.
    pub fn fresh<Id>(&self, make: fn(u128) -> Id) -> Id {
        let mut random = [0; 10];
        self.rng.fill(&mut random);
        let millis = u64::try_from(self.now().micros() / 1000).unwrap_or(0);
        make(uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid().as_u128())
    }

    /// 256 fresh secret bits.
    pub fn fresh_secret(&self) -> Zeroizing<[u8; SECRET_LEN]> {
        let mut secret = Zeroizing::new([0; SECRET_LEN]);
        self.rng.fill(secret.as_mut());
        secret
    }
}

/// The bits of the least id that is made then: ids begin with their instant, in milliseconds.
pub(super) fn made_at(at: Timestamp) -> u128 {
    u128::try_from(at.micros() / 1000).unwrap_or(0) << 80
}
