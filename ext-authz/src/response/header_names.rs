//! The names of the identity headers, and the other spellings of them that clients must not send.
//!
//! Many servers normalise header names, for example for CGI, so that `x_agent_id` or `X-Agent.Id` reaches the service as
//! an identity header. Names are therefore compared after folding: ASCII letters become lower-case, and every other byte
//! that is not a digit becomes a dash.

use countersign_identity::bearer::TOKEN_HEADER;

/// The header names with the configured prefix.
#[derive(Debug, Clone)]
pub struct HeaderNames {
    /// The header with the id of the agent.
    pub id: String,
    /// The header with its display name.
    pub name: String,
    /// The header with its trust score.
    pub trust_score: String,
    /// The header with its roles at the service.
    pub roles: String,
    /// The header with the permissions of these roles.
    pub permissions: String,
    /// The header with the id of the service.
    pub service: String,
    /// The header with the id of the token.
    pub token_id: String,
    /// The response header with the reason of a denial.
    pub reason: String,
}

impl HeaderNames {
    /// The names with this prefix.
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

    fn identity_names(&self) -> [&str; 7] {
        let Self { id, name, trust_score, roles, permissions, service, token_id, reason: _ } = self;
        [id, name, trust_score, roles, permissions, service, token_id].map(String::as_str)
    }

    /// Whether a request header must be removed.
    ///
    /// If identity headers are set (`overwritten`), their exact names must not be removed: Envoy removes headers last.
    pub fn removes(&self, sent: &str, overwritten: bool) -> bool {
        if equal_folded(sent, TOKEN_HEADER) {
            return !sent.eq_ignore_ascii_case(TOKEN_HEADER);
        }
        match self.identity_names().into_iter().find(|name| equal_folded(sent, name)) {
            Some(name) => !(overwritten && sent.eq_ignore_ascii_case(name)),
            None => equal_folded(sent, &self.reason),
        }
    }
}

/// Whether both names are equal after folding.
pub fn equal_folded(sent: &str, own: &str) -> bool {
    sent.len() == own.len() && sent.bytes().map(fold).eq(own.bytes().map(fold))
}

const fn fold(byte: u8) -> u8 {
    if byte.is_ascii_alphanumeric() { byte.to_ascii_lowercase() } else { b'-' }
}
