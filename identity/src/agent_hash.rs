//! Keyed hashes of agent ids. The sync stream names agents by their hashes, so that a service learns nothing about agents that never
//! sent it a token. The same keys hide the roles in unbound tokens ([`crate::grants`]).
//!
//! The sidecar hashes the `sub` of a token and looks up the hash. Each service has its own key, so two services cannot compare the
//! hashes that they receive.

use crate::{AgentId, RoleId, ServiceId, TokenId};
use aws_lc_rs::hmac;
use std::fmt;

/// Length of a hash key in bytes.
pub const HASH_KEY_LEN: usize = 32;

/// Length of a hash in bytes.
pub const HASH_LEN: usize = 16;

/// Separates these keys from others that are derived from the secret of the deployment.
const KEY_DOMAIN: &[u8] = b"countersign agent hash key v1";

/// Begins what is hashed for a role. The input for an agent is shorter, so the two hashes have nothing to do with each other.
const ROLE_DOMAIN: &[u8] = b"role";

/// The hash of an agent id under the key of a service: the first 16 bytes of an HMAC-SHA256.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AgentHash(u128);

impl AgentHash {
    /// Parses the bytes of a hash; `None` if the length is wrong.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(Self::from_bits(u128::from_be_bytes(bytes.try_into().ok()?)))
    }

    /// The hash with these 128 bits.
    pub const fn from_bits(bits: u128) -> Self {
        Self(bits)
    }

    /// The bytes of the hash.
    pub const fn to_bytes(self) -> [u8; HASH_LEN] {
        self.0.to_be_bytes()
    }
}

/// The key of a service, under which agent ids are hashed in its stream, and its roles in unbound tokens.
#[derive(Clone)]
pub struct AgentHashKey {
    bytes: [u8; HASH_KEY_LEN],
    hmac: hmac::Key,
}

impl AgentHashKey {
    /// Derives the key of a service from the secret of the deployment.
    pub fn derive(secret: &[u8; HASH_KEY_LEN], service: ServiceId) -> Self {
        let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, secret));
        context.update(KEY_DOMAIN);
        context.update(&service.bits().to_be_bytes());
        let mut bytes = [0; HASH_KEY_LEN];
        bytes.copy_from_slice(context.sign().as_ref());
        Self::from_array(bytes)
    }

    /// Parses a received key; `None` if the length is wrong.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(Self::from_array(bytes.try_into().ok()?))
    }

    fn from_array(bytes: [u8; HASH_KEY_LEN]) -> Self {
        Self { bytes, hmac: hmac::Key::new(hmac::HMAC_SHA256, &bytes) }
    }

    /// The bytes of the key.
    pub const fn as_bytes(&self) -> &[u8; HASH_KEY_LEN] {
        &self.bytes
    }

    /// Hashes an agent id.
    pub fn hash(&self, agent: AgentId) -> AgentHash {
        let tag = hmac::sign(&self.hmac, &agent.bits().to_be_bytes());
        let mut bytes = [0; HASH_LEN];
        bytes.copy_from_slice(&tag.as_ref()[..HASH_LEN]);
        AgentHash::from_bits(u128::from_be_bytes(bytes))
    }

    /// The first bytes of an HMAC-SHA256 of a role in a token.
    pub(crate) fn mac_of_role<const LEN: usize>(&self, token: TokenId, role: RoleId) -> [u8; LEN] {
        let mut context = hmac::Context::with_key(&self.hmac);
        context.update(ROLE_DOMAIN);
        context.update(&token.bits().to_be_bytes());
        context.update(&role.bits().to_be_bytes());
        let mut bytes = [0; LEN];
        bytes.copy_from_slice(&context.sign().as_ref()[..LEN]);
        bytes
    }
}

impl PartialEq for AgentHashKey {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for AgentHashKey {}

impl fmt::Debug for AgentHashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AgentHashKey")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: [u8; HASH_KEY_LEN] = [7; HASH_KEY_LEN];

    /// Computed with Python: `hmac.digest(hmac.digest(b"\x07" * 32, b"countersign agent hash key v1" + service, "sha256"), agent,
    /// "sha256")[:16]`, where service and agent are 16 bytes in big-endian order.
    #[test]
    fn hash_matches_an_independent_implementation() {
        let key = AgentHashKey::derive(&SECRET, ServiceId::from_bits(1));
        assert_eq!(hex::encode(key.hash(AgentId::from_bits(2)).to_bytes()), "cf8ca3efc1fca8cd92e4a71febb2272a");
    }

    #[test]
    fn hash_depends_on_the_service_and_the_secret() {
        let agent = AgentId::from_bits(2);
        let hash = AgentHashKey::derive(&SECRET, ServiceId::from_bits(1)).hash(agent);
        assert_ne!(hash, AgentHashKey::derive(&SECRET, ServiceId::from_bits(2)).hash(agent));
        assert_ne!(hash, AgentHashKey::derive(&[8; HASH_KEY_LEN], ServiceId::from_bits(1)).hash(agent));
        let received = AgentHashKey::derive(&SECRET, ServiceId::from_bits(1));
        assert_eq!(AgentHashKey::from_bytes(received.as_bytes()).unwrap().hash(agent), hash);
        assert_eq!(AgentHash::from_bytes(&hash.to_bytes()), Some(hash));
    }

    #[test]
    fn wrong_lengths_are_refused_and_keys_are_not_printed() {
        assert!(AgentHashKey::from_bytes(&[1; 31]).is_none() && AgentHash::from_bytes(&[1; 15]).is_none());
        assert_eq!(format!("{:?}", AgentHashKey::derive(&SECRET, ServiceId::from_bits(1))), "AgentHashKey");
    }
}
