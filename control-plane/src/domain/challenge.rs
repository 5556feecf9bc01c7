//! Challenges without storage: the id carries all that must be remembered, under a MAC, and the nonce
//! is derived from the id.
//!
//! So a flood of challenges stores nothing, and any replica can answer for any other.

use aws_lc_rs::hmac;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use countersign_identity::{AgentId, ServiceId, Timestamp};

/// What a challenge's id begins with.
pub const PREFIX: &str = "chal_";

/// Version, agent, service, expiry, random id.
const BODY_LEN: usize = 1 + 16 + 16 + 8 + 16;
const MAC_LEN: usize = 32;
const VERSION: u8 = 1;

/// What is asked of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Challenge {
    /// Who is asked.
    pub agent: AgentId,
    /// For which service the token shall be; none if the agent left it open.
    pub service: Option<ServiceId>,
    /// When it is no longer usable.
    pub expires_at: Timestamp,
    /// Which challenge this is.
    pub unique: u128,
}

/// The two keys of challenges, both derived from the deployment's master key.
pub struct ChallengeKeys {
    identity: hmac::Key,
    nonce: hmac::Key,
}

impl ChallengeKeys {
    /// Derives both keys.
    pub fn derive(master: &[u8]) -> Self {
        let master = hmac::Key::new(hmac::HMAC_SHA256, master);
        let derive =
            |purpose: &str| hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&master, purpose.as_bytes()).as_ref());
        Self { identity: derive("countersign challenge id v1"), nonce: derive("countersign challenge nonce v1") }
    }

    /// The challenge's id: `chal_` and base64url of its content and MAC.
    pub fn id(&self, challenge: &Challenge) -> String {
        let body = encode(challenge);
        let mac = hmac::sign(&self.identity, &body);
        format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode([&body[..], mac.as_ref()].concat()))
    }

    /// Reads an id that we made; `None` for any other text.
    pub fn open(&self, id: &str) -> Option<Challenge> {
        let bytes = URL_SAFE_NO_PAD.decode(id.strip_prefix(PREFIX)?).ok()?;
        let (body, mac) = bytes.split_at_checked(BODY_LEN).filter(|(_, mac)| mac.len() == MAC_LEN)?;
        hmac::verify(&self.identity, body, mac).ok()?;
        decode(body.try_into().ok()?)
    }

    /// The 256-bit nonce of a challenge.
    pub fn nonce(&self, challenge: &Challenge) -> [u8; 32] {
        let mut nonce = [0; 32];
        nonce.copy_from_slice(hmac::sign(&self.nonce, &encode(challenge)).as_ref());
        nonce
    }
}

impl Challenge {
    /// The id under which a login with this challenge is recorded.
    pub fn unique_text(&self) -> String {
        format!("{:032x}", self.unique)
    }

    /// When it was asked, in whole milliseconds: its random id begins with that, as every `UUIDv7` does.
    pub fn asked_at(&self) -> Timestamp {
        Timestamp::from_micros(i64::try_from(self.unique >> 80).unwrap_or(i64::MAX).saturating_mul(1000))
    }
}

fn encode(challenge: &Challenge) -> [u8; BODY_LEN] {
    let mut body = [0; BODY_LEN];
    body[0] = VERSION;
    body[1..17].copy_from_slice(&challenge.agent.bits().to_be_bytes());
    // A service's id is a UUIDv7 and therefore never zero.
    body[17..33].copy_from_slice(&challenge.service.map_or(0, ServiceId::bits).to_be_bytes());
    body[33..41].copy_from_slice(&challenge.expires_at.micros().to_be_bytes());
    body[41..].copy_from_slice(&challenge.unique.to_be_bytes());
    body
}

fn decode(body: &[u8; BODY_LEN]) -> Option<Challenge> {
    let number = |range: std::ops::Range<usize>| body[range].try_into().ok().map(u128::from_be_bytes);
    let service = number(17..33)?;
    (body[0] == VERSION).then_some(Challenge {
        agent: AgentId::from_bits(number(1..17)?),
        service: (service != 0).then(|| ServiceId::from_bits(service)),
        expires_at: Timestamp::from_micros(i64::from_be_bytes(body[33..41].try_into().ok()?)),
        unique: number(41..57)?,
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
            unique: 4,
        }
    }

    #[test]
    fn an_id_reads_back_under_its_own_keys_only() {
        let keys = ChallengeKeys::derive(&[1; 32]);
        for service in [None, Some(ServiceId::from_bits(2))] {
            let challenge = Challenge { service, ..challenge() };
            assert_eq!(keys.open(&keys.id(&challenge)), Some(challenge));
            assert_eq!(ChallengeKeys::derive(&[2; 32]).open(&keys.id(&challenge)), None);
        }
    }

    #[test]
    fn no_changed_character_is_accepted() {
        let keys = ChallengeKeys::derive(&[1; 32]);
        let id = keys.id(&challenge());
        for position in 0..id.len() {
            let mut bent = id.clone().into_bytes();
            bent[position] = if bent[position] == b'A' { b'B' } else { b'A' };
            assert_eq!(keys.open(&String::from_utf8(bent).unwrap()), None, "position {position}");
        }
        assert_eq!(keys.open(PREFIX), None);
        assert_eq!(keys.open(&format!("{id}AAAA")), None);
    }

    #[test]
    fn nonces_differ_with_every_part() {
        let keys = ChallengeKeys::derive(&[1; 32]);
        let base = challenge();
        let others = [
            Challenge { agent: AgentId::from_bits(9), ..base },
            Challenge { service: None, ..base },
            Challenge { expires_at: Timestamp::from_seconds(9), ..base },
            Challenge { unique: 9, ..base },
        ];
        assert!(others.iter().all(|other| keys.nonce(other) != keys.nonce(&base)));
    }
}
