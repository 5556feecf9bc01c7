//! The claims of an access token.

use crate::{
    AgentId, Grants, Permission, Revision, RoleName, Scope, ServiceId, SessionId, Timestamp, TokenId, TrustScore,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The claims of an access token (RFC 9068). The private claims are `name`, `sid`, `rev`, `roles`, `permissions`, `trustScore`,
/// `until`, `grants` and `requested_scope`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Claims {
    /// Issuer: the public URL of the Countersign deployment.
    pub iss: String,
    /// Subject: the agent.
    pub sub: AgentId,
    /// The client that the token was issued to: the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_id: Option<AgentId>,
    /// Audience: a service id, or the issuer for an unbound token (a token for no service).
    pub aud: AudienceClaim,
    /// Issued at, in Unix seconds.
    pub iat: i64,
    /// Not before, in Unix seconds.
    pub nbf: i64,
    /// Expires at, in Unix seconds; checked without leeway.
    pub exp: i64,
    /// The id of the token.
    pub jti: TokenId,
    /// The id of the session to which the token belongs.
    pub sid: SessionId,
    /// The revision at which roles, permissions and trust were read.
    pub rev: Revision,
    /// The agent's display name, which never changes.
    pub name: String,
    /// Names of the agent's roles at the audience.
    pub roles: Vec<RoleName>,
    /// The permissions that the roles grant.
    pub permissions: Vec<Permission>,
    /// The trust score, serialized in points.
    #[serde(rename = "trustScore")]
    pub trust_score: TrustScore,
    /// The end, in Unix seconds, of each role assignment that ends before the token expires.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub until: BTreeMap<RoleName, i64>,
    /// The roles in an unbound token, which each service reads with its own key. An unbound token has no `roles`, `permissions` and
    /// `until`, which would be in clear.
    #[serde(default, skip_serializing_if = "Grants::is_empty")]
    pub grants: Grants,
    /// The permissions that the token granted when it was issued, if the client asked for a scope. This claim is for other readers
    /// of tokens: our decisions use `requested_scope`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// The permissions that the client asked for, if it asked for a scope. The token never grants more, whatever roles the agent
    /// gets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_scope: Option<Scope>,
}

/// The claim `aud`: a text. An array of one text, which means the same (RFC 7519), is accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "TextOrArray")]
pub struct AudienceClaim(String);

#[derive(Deserialize)]
#[serde(untagged)]
enum TextOrArray {
    Text(String),
    Array([String; 1]),
}

impl From<TextOrArray> for AudienceClaim {
    fn from((TextOrArray::Text(text) | TextOrArray::Array([text])): TextOrArray) -> Self {
        Self(text)
    }
}

impl AudienceClaim {
    /// The audience, as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for AudienceClaim {
    fn from(text: String) -> Self {
        Self(text)
    }
}

/// The service that a token is issued for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    /// The token is for this service.
    Service(ServiceId),
    /// The token is for no service: the login named none, and the agent had no default service. Its roles are in [`Claims::grants`].
    Unbound,
}

impl Audience {
    /// The value of the `aud` claim.
    pub fn claim(self, issuer: &str) -> String {
        match self {
            Self::Service(service) => service.to_string(),
            Self::Unbound => issuer.to_owned(),
        }
    }
}

impl Claims {
    /// The audience; `None` if `aud` is neither a service id nor the issuer.
    pub fn audience(&self) -> Option<Audience> {
        let audience = self.aud.as_str();
        if audience == self.iss { Some(Audience::Unbound) } else { audience.parse().ok().map(Audience::Service) }
    }

    /// The time at which the token expires.
    pub const fn expires_at(&self) -> Timestamp {
        Timestamp::from_seconds(self.exp)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::json;

    /// The claims of a token with the role `reader`, of revision 10.
    pub fn claims() -> Claims {
        Claims {
            iss: "https://issuer.test".into(),
            sub: AgentId::from_bits(7),
            client_id: None,
            aud: ServiceId::from_bits(1).to_string().into(),
            iat: 1_000_000,
            nbf: 1_000_000,
            exp: 1_003_600,
            jti: TokenId::from_bits(8),
            sid: SessionId::from_bits(9),
            rev: Revision::new(10),
            name: "Größe".into(),
            roles: vec!["reader".try_into().unwrap()],
            permissions: vec!["read".try_into().unwrap()],
            trust_score: TrustScore::INITIAL,
            until: BTreeMap::new(),
            grants: Grants::default(),
            scope: None,
            requested_scope: None,
        }
    }

    fn parse(aud: serde_json::Value) -> Option<AudienceClaim> {
        serde_json::from_value(aud).ok()
    }

    #[test]
    fn audience_is_a_text_or_an_array_of_one_text() {
        assert_eq!(parse(json!("svc_1")), Some("svc_1".to_owned().into()));
        assert_eq!(parse(json!(["svc_1"])), Some("svc_1".to_owned().into()));
        for invalid in [json!([]), json!(["svc_1", "svc_2"]), json!([1]), json!(1), json!(null), json!({})] {
            assert_eq!(parse(invalid.clone()), None, "{invalid}");
        }
        assert_eq!(json!(AudienceClaim::from("svc_1".to_owned())), json!("svc_1"));
    }
}
