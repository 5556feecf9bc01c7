//! Test fixtures: an issuer with a signing key, a service, an agent, and the claims of its token.

use countersign_identity::{
    AgentId, Claims, Grants, P256PublicKey, Permission, Revision, RoleDefinition, RoleId, RoleName, ServiceId,
    SessionId, TokenId, TrustScore,
};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use p256::pkcs8::EncodePrivateKey;

pub const ISSUER: &str = "https://issuer.test";
pub const SERVICE_ID: ServiceId = ServiceId::from_bits(1);
pub const AGENT_ID: AgentId = AgentId::from_bits(2);
pub const READER_ROLE_ID: RoleId = RoleId::from_bits(3);
pub const TOKEN_ID: TokenId = TokenId::from_bits(4);
pub const SESSION_ID: SessionId = SessionId::from_bits(5);
/// The claim `iat` of tokens, in Unix seconds.
pub const ISSUED_AT: i64 = 1_700_000_000;
/// The claim `rev` of tokens.
pub const TOKEN_REVISION: i64 = 100;

/// An issuer that signs tokens with one key.
pub struct TestIssuer(p256::SecretKey);

impl TestIssuer {
    /// Creates an issuer whose private key is `seed` repeated 32 times.
    pub fn new(seed: u8) -> Self {
        Self(p256::SecretKey::from_slice(&[seed; 32]).unwrap())
    }

    pub fn public_key(&self) -> P256PublicKey {
        P256PublicKey::from_sec1(&self.0.public_key().to_sec1_bytes()).unwrap()
    }

    pub fn public_point(&self) -> Vec<u8> {
        self.public_key().to_sec1().to_vec()
    }

    pub fn sign(&self, claims: &Claims) -> String {
        let mut header = Header::new(Algorithm::ES256);
        header.typ = Some("at+jwt".into());
        header.kid = Some(countersign_identity::Kid::from_key(self.public_key()).as_str().to_owned());
        let key = EncodingKey::from_ec_der(self.0.to_pkcs8_der().unwrap().as_bytes());
        encode(&header, claims, &key).unwrap()
    }
}

pub fn role_name(text: &str) -> RoleName {
    RoleName::try_from(text).unwrap()
}

/// The claims of an agent with the role `reader`.
pub fn claims() -> Claims {
    Claims {
        iss: ISSUER.into(),
        sub: AGENT_ID,
        client_id: Some(AGENT_ID),
        aud: SERVICE_ID.to_string().into(),
        iat: ISSUED_AT,
        nbf: ISSUED_AT,
        exp: ISSUED_AT + 3600,
        jti: TOKEN_ID,
        sid: SESSION_ID,
        rev: Revision::new(TOKEN_REVISION),
        name: "Reader".into(),
        roles: vec![role_name("reader")],
        permissions: vec![Permission::try_from("read").unwrap()],
        trust_score: TrustScore::INITIAL,
        until: std::collections::BTreeMap::new(),
        grants: Grants::default(),
        scope: None,
        requested_scope: None,
    }
}

/// The definition of the role `reader`.
pub fn reader_role() -> RoleDefinition {
    RoleDefinition {
        id: READER_ROLE_ID,
        name: role_name("reader"),
        permissions: vec![Permission::try_from("read").unwrap()],
        created_revision: Revision::new(50),
    }
}
