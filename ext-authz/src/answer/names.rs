//! The names of our headers, and every way a client could spell them.
//!
//! Many servers hand headers to programs with `-` and `_` made alike and letters of one case, so
//! `x_agent_id` or `X-Agent.Id` may arrive there as ours. Hence the fold: letters lower-cased, and every
//! byte that is not a letter or digit is a dash.

use countersign_identity::bearer::TOKEN_HEADER;

/// The names, spelled out once.
#[derive(Debug, Clone)]
pub struct Names {
    /// The agent's id.
    pub id: String,
    /// Its display name.
    pub name: String,
    /// Its trust score.
    pub trust_score: String,
    /// Its roles at the service.
    pub roles: String,
    /// What they permit.
    pub permissions: String,
    /// The service that was asked for.
    pub service: String,
    /// The token's id.
    pub token_id: String,
    /// Why a request was refused.
    pub reason: String,
}

impl Names {
    /// All names that begin with this prefix.
    pub fn new(prefix: &str) -> Self {
        let name = |rest: &str| format!("{prefix}{rest}");
        Self {
            id: name("id"),
            name: name("name"),
            trust_score: name("trust-score"),
            roles: name("roles"),
            permissions: name("permissions"),
            service: name("service"),
            token_id: name("token-id"),
            reason: name("reason"),
        }
    }

    fn identity(&self) -> [&str; 7] {
        let Self { id, name, trust_score, roles, permissions, service, token_id, reason: _ } = self;
        [id, name, trust_score, roles, permissions, service, token_id].map(String::as_str)
    }

    /// Whether a header that the client sent must not reach the service.
    ///
    /// Identity names that are `overwritten` must not be removed too, since removal comes after.
    pub fn removes(&self, sent: &str, overwritten: bool) -> bool {
        if folds_to(sent, TOKEN_HEADER) {
            return !sent.eq_ignore_ascii_case(TOKEN_HEADER);
        }
        match self.identity().into_iter().find(|name| folds_to(sent, name)) {
            Some(name) => !(overwritten && sent.eq_ignore_ascii_case(name)),
            None => folds_to(sent, &self.reason),
        }
    }
}

/// Whether a name as sent is, folded, this name of ours.
pub fn folds_to(sent: &str, ours: &str) -> bool {
    sent.len() == ours.len() && sent.bytes().map(fold).eq(ours.bytes().map(fold))
}

const fn fold(byte: u8) -> u8 {
    if byte.is_ascii_alphanumeric() { byte.to_ascii_lowercase() } else { b'-' }
}
