//! The secret of the deployment from which the key of each service is derived.

use countersign_identity::{AgentHashKey, ServiceId, agent_hash::HASH_KEY_LEN};
use zeroize::Zeroizing;

/// The secret from which we derive a key for each service. Its streams name agents by hashes that are made with this key.
#[derive(Clone)]
pub struct AgentHashSecret(Zeroizing<[u8; HASH_KEY_LEN]>);

impl AgentHashSecret {
    pub fn new(bytes: [u8; HASH_KEY_LEN]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    pub fn key_of(&self, service: ServiceId) -> AgentHashKey {
        AgentHashKey::derive(&self.0, service)
    }
}
