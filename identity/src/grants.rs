//! The claim `grants` of an unbound token: the roles that its agent held at all services when the token was issued. Each service finds
//! its own roles in it.
//!
//! An entry is a tag that stands for a role, and the time at which the agent loses the role. The tag, and the mask that hides the time,
//! are an HMAC of the ids of the token and the role, under the key of the role's service. Invariant: without this key, nobody can tell
//! an entry of a role from padding, or find out whether entries of two tokens stand for the same role.

use crate::{AgentHashKey, Claims, RoleGrant, RoleId, Timestamp};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The maximum number of entries in a token.
pub const MAX_GRANTS: usize = 128;

/// The number of entries is a multiple of this, and never zero. So it shows little about the number of roles.
const PADDED_TO: usize = 8;

/// The length of a tag in bytes.
const TAG_LEN: usize = 9;

/// The length of an entry in bytes: a tag, and a number of seconds.
const ENTRY_LEN: usize = TAG_LEN + size_of::<u32>();

/// Stands for a role that the agent does not lose before the token expires.
const NO_END: u32 = u32::MAX;

type Entry = [u8; ENTRY_LEN];

/// The text is not a claim `grants`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be base64url of 8 to 128 entries of 13 bytes, a multiple of 8, in ascending order of their tags")]
pub struct InvalidGrants;

/// The roles in an unbound token, in ascending order of their tags. So the order shows nothing. A token for a service has none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Grants(Vec<Entry>);

impl Grants {
    /// Whether there are no entries, as in a token for a service.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The size of the entries, in bytes.
    pub const fn memory(&self) -> usize {
        self.0.len() * ENTRY_LEN
    }
}

impl TryFrom<String> for Grants {
    type Error = InvalidGrants;

    fn try_from(text: String) -> Result<Self, InvalidGrants> {
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| InvalidGrants)?;
        let (entries, rest) = bytes.as_chunks::<ENTRY_LEN>();
        let has_valid_count = (1..=MAX_GRANTS).contains(&entries.len()) && entries.len().is_multiple_of(PADDED_TO);
        let is_ascending = entries.is_sorted_by(|entry, next| tag(entry) < tag(next));
        if rest.is_empty() && has_valid_count && is_ascending { Ok(Self(entries.to_vec())) } else { Err(InvalidGrants) }
    }
}

impl From<Grants> for String {
    fn from(grants: Grants) -> Self {
        URL_SAFE_NO_PAD.encode(grants.0.as_flattened())
    }
}

/// A role that an agent holds, and the key of the service of this role.
#[derive(Debug, Clone)]
pub struct KeyedGrant {
    /// The key of the service.
    pub key: AgentHashKey,
    /// The role, and until when the agent holds it.
    pub grant: RoleGrant,
}

impl Claims {
    /// The claims of an unbound token, with roles for the services that receive it: at most [`MAX_GRANTS`]. `padding` is the key of no
    /// service.
    #[must_use]
    pub fn with_grants(self, roles: impl IntoIterator<Item = KeyedGrant>, padding: &AgentHashKey) -> Self {
        let tagged = |entry: Entry| (tag(&entry).to_vec(), entry);
        let entries = roles.into_iter().map(|KeyedGrant { key, grant }| tagged(self.grant_entry(&key, grant)));
        let mut entries: BTreeMap<_, _> = entries.collect();
        let mut number = 0;
        while entries.is_empty() || !entries.len().is_multiple_of(PADDED_TO) {
            let nothing = RoleGrant { role: RoleId::from_bits(number), until: None };
            entries.extend([tagged(self.grant_entry(padding, nothing))]);
            number += 1;
        }
        Self { grants: Grants(entries.into_values().collect()), ..self }
    }

    /// The role as the agent held it when this unbound token was issued. `key` is the key of the role's service. `None` if the agent did
    /// not hold the role, or if the token does not say it because the agent had too many roles.
    pub fn find_grant(&self, key: &AgentHashKey, role: RoleId) -> Option<RoleGrant> {
        if self.grants.is_empty() {
            return None;
        }
        let mac: Entry = key.mac_of_role(self.jti, role);
        let position = self.grants.0.binary_search_by(|entry| tag(entry).cmp(tag(&mac))).ok()?;
        let end = seconds(self.grants.0.get(position)?) ^ seconds(&mac);
        let until = (end != NO_END).then(|| Timestamp::from_seconds(self.iat.saturating_add(end.into())));
        Some(RoleGrant { role, until })
    }

    fn grant_entry(&self, key: &AgentHashKey, RoleGrant { role, until }: RoleGrant) -> Entry {
        let end = until.filter(|end| *end < self.expires_at());
        // The role has ended before the token if its end does not fit.
        let seconds_after_issue = |end: Timestamp| u32::try_from(end.seconds().saturating_sub(self.iat)).unwrap_or(0);
        let mut entry: Entry = key.mac_of_role(self.jti, role);
        let masked = seconds(&entry) ^ end.map_or(NO_END, seconds_after_issue);
        entry[TAG_LEN..].copy_from_slice(&masked.to_be_bytes());
        entry
    }
}

fn tag(entry: &Entry) -> &[u8] {
    &entry[..TAG_LEN]
}

/// The seconds of an entry, as they are written, or the mask of these seconds in an HMAC.
const fn seconds(entry: &Entry) -> u32 {
    let [.., first, second, third, fourth] = *entry;
    u32::from_be_bytes([first, second, third, fourth])
}

#[cfg(test)]
mod tests;
