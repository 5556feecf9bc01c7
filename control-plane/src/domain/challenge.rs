//! Challenges without storage: the id carries all that must be remembered, under a MAC, and the nonce
//! is derived from the id.
//!
//! So a flood of challenges stores nothing, and any replica can answer for any other.

use aws_lc_rs::hmac;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use countersign_identity::{AgentId, Revision, ServiceId, Timestamp};

/// What a challenge's id begins with.
pub const PREFIX: &str = "chal_";

const MAC_LEN: usize = 32;
const WITHOUT_ERA: u8 = 1;
const WITH_ERA: u8 = 2;

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
    /// After which restoration of the database it was asked: what was asked before may have been answered in what is lost.
    pub era: Revision,
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
        let (body, mac) = bytes.split_at_checked(bytes.len().checked_sub(MAC_LEN)?)?;
        hmac::verify(&self.identity, body, mac).ok()?;
        decode(body)
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
}

/// Version, agent, service, expiry, random id; and, of a deployment that was restored once, its era.
fn encode(challenge: &Challenge) -> Vec<u8> {
    let Challenge { agent, service, expires_at, unique, era } = challenge;
    let has_era = *era != Revision::default();
    let mut body = vec![if has_era { WITH_ERA } else { WITHOUT_ERA }];
    body.extend(agent.bits().to_be_bytes());
    // A service's id is a UUIDv7 and therefore never zero.
    body.extend(service.map_or(0, ServiceId::bits).to_be_bytes());
    body.extend(expires_at.micros().to_be_bytes());
    body.extend(unique.to_be_bytes());
    if has_era {
        body.extend(era.number().to_be_bytes());
    }
    body
}

fn decode(body: &[u8]) -> Option<Challenge> {
    let (version, rest) = body.split_first()?;
    let (agent, rest) = rest.split_first_chunk()?;
    let (service, rest) = rest.split_first_chunk()?;
    let (expires_at, rest) = rest.split_first_chunk()?;
    let (unique, rest) = rest.split_first_chunk()?;
    let era = match *version {
        WITHOUT_ERA if rest.is_empty() => 0,
        WITH_ERA => i64::from_be_bytes(rest.try_into().ok()?),
        _ => return None,
    };
    let service = u128::from_be_bytes(*service);
    Some(Challenge {
        agent: AgentId::from_bits(u128::from_be_bytes(*agent)),
        service: (service != 0).then(|| ServiceId::from_bits(service)),
        expires_at: Timestamp::from_micros(i64::from_be_bytes(*expires_at)),
        unique: u128::from_be_bytes(*unique),
        era: Revision::new(era),
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
            era: Revision::new(5),
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
            Challenge { era: Revision::default(), ..base },
        ];
        assert!(others.iter().all(|other| keys.nonce(other) != keys.nonce(&base)));
    }
}
