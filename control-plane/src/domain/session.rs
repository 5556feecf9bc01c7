//! Sessions and their refresh tokens. A session begins with a login; each refresh replaces the refresh token of the session.
//!
//! All refresh tokens of a session have the first half of their secrets in common. The database has the hash of this half, and the
//! hash of the whole secret of the current token. So we recognize a used refresh token without storing a row for each token. And
//! only someone who has had a refresh token of the session can make a token that looks like a used one.

use super::credential::{Credential, SECRET_LEN, SecretHash};
use countersign_identity::{AgentId, Reason, Revision, Scope, ServiceId, SessionId, Timestamp};
use secrecy::SecretString;
use sha2::{Digest, Sha256};
use std::{collections::BTreeSet, fmt};
use zeroize::Zeroizing;

/// Length of the part of a secret that all refresh tokens of a session have in common, in bytes.
const COMMON_LEN: usize = SECRET_LEN / 2;

/// Length of a secret without its checksum, in bytes. The checksum is the beginning of the SHA-256 of the rest. It shows that a
/// token was mistyped or cut. Without a checksum, we would take such a token for a used one, and end the session.
const CHECKED_LEN: usize = SECRET_LEN - 4;

pub struct RefreshToken(Credential<SessionId>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// Unique identifier, the `sid` claim of access tokens.
    pub id: SessionId,
    /// Agent that logged in.
    pub agent: AgentId,
    /// Service that the tokens of the session are bound to; `None` for unbound tokens.
    pub service: Option<ServiceId>,
    /// The permissions that the client asked for; `None` if the tokens grant whatever the roles of the agent grant.
    pub scope: Option<Scope>,
    /// Time of the login.
    pub started_at: Timestamp,
    /// Revision of the change feed at the login.
    pub started_revision: Revision,
    /// Time from which the session can no longer be refreshed. Ending a session sets it to the time of the end, if this is earlier.
    pub expires_at: Timestamp,
    /// Time at which the session was ended; `None` if it was not ended.
    pub ended_at: Option<Timestamp>,
    /// The services for which the session has had tokens. Their sidecars must learn of its end. `None` stands for unbound tokens.
    pub audiences: BTreeSet<Option<ServiceId>>,
    /// The hashes of the refresh tokens.
    pub refresh: RefreshHashes,
}

/// What the database knows of the refresh tokens of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefreshHashes {
    /// The hash of the half that all refresh tokens of the session have in common.
    pub common: SecretHash,
    /// The hash of the whole secret of the current refresh token.
    pub current: SecretHash,
}

impl RefreshHashes {
    /// The hashes to store when `token` is the current refresh token of its session.
    pub fn of(token: &RefreshToken) -> Self {
        Self { common: SecretHash::of(token.common()), current: token.hash() }
    }
}

impl RefreshToken {
    /// The first refresh token of a session, with a secret of these random bytes except for its checksum.
    pub fn new(session: SessionId, random: Zeroizing<[u8; SECRET_LEN]>) -> Self {
        let mut secret = random;
        let (checked, checksum) = secret.split_at_mut(CHECKED_LEN);
        for (byte, sum) in checksum.iter_mut().zip(Sha256::digest(checked)) {
            *byte = sum;
        }
        Self(Credential::new(session, secret))
    }

    /// The inverse of [`Self::reveal`]; `None` if the text is not a refresh token, or its checksum is wrong.
    pub fn parse(text: &str) -> Option<Self> {
        let credential = Credential::parse(text)?;
        let (checked, checksum) = credential.secret().split_at(CHECKED_LEN);
        Sha256::digest(checked).starts_with(checksum).then_some(Self(credential))
    }

    /// The session of the token.
    pub const fn session(&self) -> SessionId {
        self.0.id()
    }

    /// The refresh token that replaces this one. The first half of the secret stays, so only the second half of `random` is used.
    #[must_use]
    pub fn next(&self, random: Zeroizing<[u8; SECRET_LEN]>) -> Self {
        let mut secret = random;
        secret[..COMMON_LEN].copy_from_slice(self.common());
        Self::new(self.session(), secret)
    }

    /// The hash of the secret, to be stored.
    pub fn hash(&self) -> SecretHash {
        self.0.hash()
    }

    /// The text of the token, which is sent to the agent only once.
    pub fn reveal(&self) -> SecretString {
        self.0.reveal()
    }

    /// The part of the secret that all refresh tokens of a session have in common.
    fn common(&self) -> &[u8] {
        &self.0.secret()[..COMMON_LEN]
    }
}

impl fmt::Debug for RefreshToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RefreshToken(…)")
    }
}

impl Session {
    /// Whether `token` is a refresh token of this session, whether it was used or not.
    pub fn issued(&self, token: &RefreshToken) -> bool {
        self.id == token.session() && self.refresh.common.is_of(token.common())
    }

    /// Checks whether a refresh token may refresh the session. `cutoff`: sessions that started below this revision are invalid.
    pub fn check_refresh(&self, token: &RefreshToken, cutoff: Revision, now: Timestamp) -> Result<(), Reason> {
        if !self.issued(token) {
            return Err(Reason::RefreshInvalid);
        }
        if !self.refresh.current.matches(&token.0) {
            return Err(Reason::RefreshReused);
        }
        if self.ended_at.is_some() || self.started_revision < cutoff {
            return Err(Reason::RefreshRevoked);
        }
        if now >= self.expires_at { Err(Reason::RefreshExpired) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::credential::expose;

    fn session(token: &RefreshToken) -> Session {
        Session {
            id: token.session(),
            agent: AgentId::from_bits(1),
            service: None,
            scope: None,
            started_at: Timestamp::from_micros(0),
            started_revision: Revision::new(5),
            expires_at: Timestamp::from_micros(10),
            ended_at: None,
            audiences: BTreeSet::from([None]),
            refresh: RefreshHashes::of(token),
        }
    }

    fn check(session: &Session, token: &RefreshToken) -> Result<(), Reason> {
        session.check_refresh(token, Revision::new(5), Timestamp::from_micros(9))
    }

    fn token(id: u128, first: u8, second: u8) -> RefreshToken {
        let mut secret = Zeroizing::new([first; SECRET_LEN]);
        secret[COMMON_LEN..].fill(second);
        RefreshToken::new(SessionId::from_bits(id), secret)
    }

    #[test]
    fn each_refresh_token_is_good_for_one_refresh() {
        let first = token(1, 1, 1);
        let second = first.next(Zeroizing::new([2; SECRET_LEN]));
        assert_eq!(second.hash(), token(1, 1, 2).hash());
        let before = session(&first);
        assert_eq!(check(&before, &first), Ok(()));
        let after = Session { refresh: RefreshHashes::of(&second), ..before };
        assert_eq!((check(&after, &second), check(&after, &first)), (Ok(()), Err(Reason::RefreshReused)));
    }

    #[test]
    fn only_a_holder_of_a_refresh_token_can_present_a_used_one() {
        let session = session(&token(1, 1, 1));
        for forged in [token(1, 2, 1), token(1, 2, 2), token(2, 1, 1)] {
            assert_eq!(check(&session, &forged), Err(Reason::RefreshInvalid));
        }
    }

    #[test]
    fn mistyped_refresh_token_is_none() {
        let revealed = token(1, 1, 1).reveal();
        let text = expose(&revealed);
        assert!(RefreshToken::parse(text).is_some_and(|parsed| parsed.hash() == token(1, 1, 1).hash()));
        let mut digits = 0;
        for (at, digit) in text.char_indices().skip(text.len() - 2 * SECRET_LEN) {
            let other = if digit == '0' { "1" } else { "0" };
            let mistyped = format!("{}{other}{}", &text[..at], &text[at + 1..]);
            assert!(RefreshToken::parse(&mistyped).is_none(), "{at}");
            digits += 1;
        }
        assert_eq!(digits, 64);
    }

    #[test]
    fn refresh_ends_with_the_session_or_a_cutoff() {
        let token = token(1, 1, 1);
        let session = session(&token);
        let ended = Session { ended_at: Some(Timestamp::from_micros(1)), ..session.clone() };
        assert_eq!(check(&ended, &token), Err(Reason::RefreshRevoked));
        let at = |cutoff, now| session.check_refresh(&token, Revision::new(cutoff), Timestamp::from_micros(now));
        assert_eq!(at(6, 9), Err(Reason::RefreshRevoked));
        assert_eq!(at(5, 10), Err(Reason::RefreshExpired));
    }
}
