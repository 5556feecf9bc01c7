//! The dependencies and settings of all operations.

use super::memory::{
    CachedKey, ConfirmationTurn, HousekeepingSample, HousekeepingStatus, RecentChanges, SuppressedBursts, Verification,
    cache_of_keys, cache_of_verifications,
};
use crate::{
    address_guard::AddressGuard,
    domain::{
        agent_hash_secret::AgentHashSecret,
        challenge::ChallengeKeyRing,
        credential::SECRET_LEN,
        quota::Quotas,
        signing_key::{RotationPolicy, SigningKeyRing},
        webhook::health::QueueHealthProbe,
    },
    keyring::Keyring,
    sidecars::Sidecars,
    store::{SharedRead, Store},
};
use countersign_identity::{AgentId, ApiKeyId, Timestamp, TokenCache};
use countersign_process::{Clock, Places, Rng, server::Network};
use moka::sync::Cache;
use std::{sync::Arc, time::Duration};
use tokio::sync::{Mutex, Notify};
use zeroize::Zeroizing;

/// Settings of the Countersign deployment that operations need.
#[derive(Debug, Clone)]
pub struct OperationConfig {
    /// `iss` claim of every token: the public URL.
    pub issuer: String,
    pub access_token_lifetime: Duration,
    /// Lifetime of sessions, from the login.
    pub session_lifetime: Duration,
    pub key_rotation: RotationPolicy,
    /// Whether only administrators may create services.
    pub only_admins_create_services: bool,
    /// How many things persons, services and agents may have.
    pub quotas: Quotas,
}

/// The parts of a [`Context`] that the servers and background tasks use, too.
#[derive(Clone)]
pub struct ContextParts {
    pub store: Store,
    pub keyring: Arc<Keyring>,
    pub clock: Arc<dyn Clock>,
    pub rng: Arc<dyn Rng>,
    /// Rejects webhook URLs that requests must not be sent to.
    pub address_guard: AddressGuard,
    /// Wakes the webhook dispatcher when a delivery becomes due.
    pub dispatcher_wakeup: Arc<Notify>,
    pub sidecars: Sidecars,
    pub agent_hash_secret: AgentHashSecret,
    /// Limits how many API keys are read at a time for each client network.
    pub key_lookups: Places<Network>,
}

/// Dependencies of the operations. The fields are private to `operations`, so that handlers can use the database only through
/// operations.
pub struct Context {
    pub(super) store: Store,
    pub(super) keyring: Arc<Keyring>,
    pub(super) challenge_keys: ChallengeKeyRing,
    clock: Arc<dyn Clock>,
    pub(super) rng: Arc<dyn Rng>,
    pub(super) config: OperationConfig,
    /// Notified after each feedback, which may have changed a trust score.
    pub(super) trust_changed: Notify,
    pub(super) address_guard: AddressGuard,
    pub(super) dispatcher_wakeup: Arc<Notify>,
    pub(super) sidecars: Sidecars,
    pub(super) agent_hash_secret: AgentHashSecret,
    pub(super) key_lookups: Places<Network>,
    pub(super) queue_health: QueueHealthProbe,
    /// Counts of failed logins for which no events are emitted.
    pub(super) suppressed_bursts: SuppressedBursts,
    /// A background job holds this lock while its transaction runs.
    pub(super) background_turn: Mutex<()>,
    /// Where the next run of `confirm_changes` continues.
    pub(super) confirmation_turn: Mutex<ConfirmationTurn>,
    pub(super) housekeeping: HousekeepingStatus,
    /// The read that concurrent health checks share, because anybody may request any number of them.
    pub(super) database_probe: SharedRead<()>,
    /// The read of the published keys that concurrent requests share, because anybody may send any number of them.
    pub(super) published_keys_read: SharedRead<SigningKeyRing>,
    /// Tells whether the content of `service_keys` and `verifications` is still what the database contains.
    pub(super) recent_changes: RecentChanges,
    pub(super) service_keys: Cache<ApiKeyId, Arc<CachedKey>>,
    pub(super) verifications: TokenCache<Verification>,
}

impl Context {
    pub fn new(
        parts: ContextParts,
        challenge_keys: ChallengeKeyRing,
        config: OperationConfig,
        queue_health: QueueHealthProbe,
    ) -> Self {
        let ContextParts {
            store,
            keyring,
            clock,
            rng,
            address_guard,
            dispatcher_wakeup,
            sidecars,
            agent_hash_secret,
            key_lookups,
        } = parts;
        let housekeeping = HousekeepingStatus::new(clock.since_boot());
        Self {
            store,
            keyring,
            challenge_keys,
            clock,
            rng,
            config,
            trust_changed: Notify::new(),
            address_guard,
            dispatcher_wakeup,
            sidecars,
            agent_hash_secret,
            key_lookups,
            queue_health,
            suppressed_bursts: SuppressedBursts::default(),
            background_turn: Mutex::default(),
            confirmation_turn: Mutex::default(),
            housekeeping,
            database_probe: SharedRead::default(),
            published_keys_read: SharedRead::default(),
            recent_changes: RecentChanges::default(),
            service_keys: cache_of_keys(),
            verifications: cache_of_verifications(),
        }
    }

    /// Whether the last write to the database succeeded.
    pub fn database_is_writable(&self) -> bool {
        self.store.is_writable()
    }

    /// The state of housekeeping, for the metrics.
    pub fn housekeeping_samples(&self) -> Vec<HousekeepingSample> {
        self.housekeeping.samples()
    }

    /// Waits until this process has stored feedback, which may have changed a trust score.
    pub async fn wait_for_trust_change(&self) {
        self.trust_changed.notified().await;
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Time since boot, for durations and ages.
    pub fn since_boot(&self) -> Duration {
        self.clock.since_boot()
    }

    pub fn issuer(&self) -> &str {
        &self.config.issuer
    }

    pub fn token_endpoint(&self) -> String {
        format!("{}/oauth/token", self.issuer())
    }

    /// The values of `aud` that client assertions may have. RFC 7523 names the token endpoint, and its successor the issuer.
    pub(super) fn assertion_audiences(&self) -> [String; 3] {
        [self.issuer().to_owned(), format!("{}/", self.issuer()), self.token_endpoint()]
    }

    /// How long a client may cache the published signing keys.
    pub const fn jwks_max_age(&self) -> Duration {
        self.config.key_rotation.jwks_max_age
    }

    /// Name of the database engine: `sqlite` or `postgresql`.
    pub fn database_engine(&self) -> &'static str {
        self.store.engine_name()
    }

    /// The agent for which a challenge was issued, or `None` if this Countersign deployment did not issue the challenge.
    pub fn challenged_agent(&self, challenge_id: &str) -> Option<AgentId> {
        self.challenge_keys.decode_id(challenge_id).map(|(challenge, _)| challenge.agent)
    }

    /// Generates an identifier from the 128 bits of a `UUIDv7`, so that ids sort by creation time.
    pub fn new_id<Id>(&self, from_bits: fn(u128) -> Id) -> Id {
        let mut random = [0; 10];
        self.rng.fill(&mut random);
        let millis = u64::try_from(self.now().micros() / 1000).unwrap_or(0);
        from_bits(uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid().as_u128())
    }

    /// Generates a random 256-bit secret.
    pub fn new_secret(&self) -> Zeroizing<[u8; SECRET_LEN]> {
        let mut secret = Zeroizing::new([0; SECRET_LEN]);
        self.rng.fill(secret.as_mut());
        secret
    }
}

/// The lowest id that can be generated at the time `at`. Ids begin with their creation time in milliseconds.
pub(in crate::operations) fn id_lower_bound(at: Timestamp) -> u128 {
    u128::try_from(at.micros() / 1000).unwrap_or(0) << 80
}
