//! Stateless challenges: the challenge id contains the state of the challenge under a MAC, and the nonce is derived from this
//! state.
//!
//! The server stores nothing for a challenge. So a flood of challenge requests does not grow the database, and every replica can
//! verify the challenges of the others.

use super::derived_keys::{DerivedKeys, derive_key};
use aws_lc_rs::hmac;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use countersign_identity::{AgentId, Revision, ServiceId, Timestamp};
use std::time::Duration;

/// Prefix of challenge ids.
pub const PREFIX: &str = "chal_";

/// Time from the issue of a challenge until it becomes invalid.
pub const LIFETIME: Duration = Duration::from_mins(5);

const MAC_LEN: usize = 32;

/// The state of a challenge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Challenge {
    /// The agent that must prove possession of its key.
    pub agent: AgentId,
    /// Service that the token is requested for; `None` if the request contains no service.
    pub service: Option<ServiceId>,
    /// Time from which the challenge is invalid.
    pub expires_at: Timestamp,
    /// Random identifier.
    pub random_id: u128,
    /// Cutoff revision of the last database restore when the challenge was issued; 0 if there was no restore. We refuse a challenge
    /// from before a restore: somebody may have used it between the backup and the restore.
    pub restore_revision: Revision,
}

/// HMAC keys for challenge ids and nonces, derived from the master key.
pub struct ChallengeKeys {
    id: hmac::Key,
    nonce: hmac::Key,
}

impl ChallengeKeys {
    /// Derives both keys from the master key.
    pub fn derive(master: &[u8]) -> Self {
        Self {
            id: derive_key(master, "countersign challenge id v1"),
            nonce: derive_key(master, "countersign challenge nonce v1"),
        }
    }

    /// Encodes the challenge id: `chal_` and the base64url of state and MAC.
    pub fn encode_id(&self, challenge: &Challenge) -> String {
        let body = encode_state(challenge);
        let mac = hmac::sign(&self.id, &body);
        format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode([&body[..], mac.as_ref()].concat()))
    }

    /// Verifies and decodes a challenge id; `None` if the id was not made with these keys.
    pub fn decode_id(&self, id: &str) -> Option<Challenge> {
        let bytes = URL_SAFE_NO_PAD.decode(id.strip_prefix(PREFIX)?).ok()?;
        let (body, mac) = bytes.split_at_checked(bytes.len().checked_sub(MAC_LEN)?)?;
        hmac::verify(&self.id, body, mac).ok()?;
        decode_state(body)
    }

    /// The 256-bit nonce that the agent must sign.
    pub fn nonce(&self, challenge: &Challenge) -> [u8; 32] {
        let mut nonce = [0; 32];
        nonce.copy_from_slice(hmac::sign(&self.nonce, &encode_state(challenge)).as_ref());
        nonce
    }
}

/// The challenge keys of all configured master keys.
pub type ChallengeKeyRing = DerivedKeys<ChallengeKeys>;

impl ChallengeKeyRing {
    /// Verifies and decodes a challenge id. Returns the challenge and its nonce; `None` if no key of the ring made the id.
    pub fn decode_id(&self, id: &str) -> Option<(Challenge, [u8; 32])> {
        self.iter().find_map(|keys| {
            let challenge = keys.decode_id(id)?;
            Some((challenge, keys.nonce(&challenge)))
        })
    }
}

impl Challenge {
    /// The random identifier as hex, as stored with the session that used the challenge.
    pub fn random_id_hex(&self) -> String {
        format!("{:032x}", self.random_id)
    }
}

/// Encodes all fields, each with a fixed length.
fn encode_state(challenge: &Challenge) -> Vec<u8> {
    let Challenge { agent, service, expires_at, random_id, restore_revision } = challenge;
    // A challenge for no service is encoded with the service id zero, which no service has, because service ids are UUIDv7.
    let ids = [agent.bits(), service.map_or(0, ServiceId::bits), *random_id].map(u128::to_be_bytes);
    let numbers = [expires_at.micros(), restore_revision.number()].map(i64::to_be_bytes);
    [ids.as_flattened(), numbers.as_flattened()].concat()
}

/// The inverse of [`encode_state`]; `None` for a wrong length.
fn decode_state(body: &[u8]) -> Option<Challenge> {
    let (ids, numbers) = body.split_at_checked(3 * size_of::<u128>())?;
    let &[agent, service, random_id] = ids.as_chunks::<16>().0 else { return None };
    let (&[expires_at, restore_revision], []) = numbers.as_chunks::<8>() else { return None };
    let service = u128::from_be_bytes(service);
    Some(Challenge {
        agent: AgentId::from_bits(u128::from_be_bytes(agent)),
        service: (service != 0).then(|| ServiceId::from_bits(service)),
        expires_at: Timestamp::from_micros(i64::from_be_bytes(expires_at)),
        random_id: u128::from_be_bytes(random_id),
        restore_revision: Revision::new(i64::from_be_bytes(restore_revision)),
    })
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    fn challenge() -> Challenge {
        Challenge {
            agent: AgentId::from_bits(1),
            service: Some(ServiceId::from_bits(2)),
            expires_at: Timestamp::from_seconds(3),
            random_id: 4,
            restore_revision: Revision::new(5),
        }
    }

    #[test]
    fn decodes_an_id_only_with_the_keys_that_made_it() {
        let keys = ChallengeKeys::derive(&[1; 32]);
        for service in [None, Some(ServiceId::from_bits(2))] {
            let challenge = Challenge { service, ..challenge() };
            assert_eq!(keys.decode_id(&keys.encode_id(&challenge)), Some(challenge));
            assert_eq!(ChallengeKeys::derive(&[2; 32]).decode_id(&keys.encode_id(&challenge)), None);
        }
    }

    #[test]
    fn ring_decodes_ids_of_all_its_keys() {
        let keys = |number| (format!("key {number}"), ChallengeKeys::derive(&[number; 32]));
        let ring = ChallengeKeyRing::new(vec![keys(1), keys(2)]);
        for number in [1, 2] {
            let (name, keys) = keys(number);
            let expected = Some((challenge(), keys.nonce(&challenge())));
            assert_eq!(ring.decode_id(&keys.encode_id(&challenge())), expected);
            assert_eq!(ring.find(&name).unwrap().nonce(&challenge()), keys.nonce(&challenge()));
        }
        assert_eq!(ring.decode_id(&keys(3).1.encode_id(&challenge())), None);
        assert!(ring.find("key 3").is_none());
    }

    #[test]
    fn refuses_an_id_with_any_character_changed() {
        let keys = ChallengeKeys::derive(&[1; 32]);
        let id = keys.encode_id(&challenge());
        for position in 0..id.len() {
            let mut changed = id.clone().into_bytes();
            changed[position] = if changed[position] == b'A' { b'B' } else { b'A' };
            assert_eq!(keys.decode_id(&String::from_utf8(changed).unwrap()), None, "position {position}");
        }
        assert_eq!(keys.decode_id(PREFIX), None);
        assert_eq!(keys.decode_id(&format!("{id}AAAA")), None);
    }

    #[test]
    fn nonce_depends_on_every_field() {
        let keys = ChallengeKeys::derive(&[1; 32]);
        let base = challenge();
        let others = [
            Challenge { agent: AgentId::from_bits(9), ..base },
            Challenge { service: None, ..base },
            Challenge { expires_at: Timestamp::from_seconds(9), ..base },
            Challenge { random_id: 9, ..base },
            Challenge { restore_revision: Revision::default(), ..base },
        ];
        assert!(others.iter().all(|other| keys.nonce(other) != keys.nonce(&base)));
    }
}
