//! Names, texts, keys, credentials, timestamps and numbers.

use super::{describe, schemas};
use crate::{
    domain::{
        audit::AuditAction,
        client_assertion::ASSERTION_TYPE,
        resource_uri::ResourceUri,
        service::KeyScope,
        text::{Description, DisplayName, EmailAddress, IssuerText, ManagedBy, Metadata, SubjectText},
        trust::Score,
        webhook::{
            delivery::DeliveryStatus,
            event::{EventFilter, EventKind},
            url::TargetUrl,
        },
    },
    http::timestamp::Rfc3339 as Timestamp,
};
use countersign_identity::{Permission, RoleName, Scope, public_key::MAX_PEM_BYTES};
use serde_json::json;
use utoipa::{
    ToSchema,
    openapi::{
        KnownFormat, Ref, RefOr, Schema, SchemaFormat, Type,
        schema::{AdditionalProperties, ArrayBuilder, ObjectBuilder, OneOfBuilder},
    },
};

/// One line of printable characters, as in `identity::names::is_printable`. Unicode tag characters and private-use characters
/// above U+FFFF are refused too, but regular expressions have no portable notation for characters above U+FFFF.
const PRINTABLE_LINE: &str = concat!(
    r"^[^\u0000-\u0020\u007f-\u00a0\u00ad\u061c\u1680\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ue000-\uf8ff\ufeff\ufff9-\ufffb]",
    r"([^\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ue000-\uf8ff\ufeff\ufff9-\ufffb]*",
    r"[^\u0000-\u0020\u007f-\u00a0\u00ad\u061c\u1680\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ue000-\uf8ff\ufeff\ufff9-\ufffb])?$",
);

/// Any number of lines without control characters.
const MULTILINE_TEXT: &str = r"^[^\u0000-\u0009\u000b-\u001f\u007f-\u009f]*$";

/// An access token in examples, with an invalid signature.
const EXAMPLE_JWT: &str = concat!(
    "eyJ0eXAiOiJhdCtqd3QiLCJhbGciOiJFUzI1NiIsImtpZCI6Im9LSXl3dkdVcFRWVHl4TVEzYndJSWVRVXVkZnJfQ2tMTWpDRTE5RUNELVUifQ.",
    "eyJpc3MiOiJodHRwczovL2NvdW50ZXJzaWduLmV4YW1wbGUiLCJzdWIiOiJhZ2VudF8wMWp5ZDNycTh5ZmQxOXlyMHc1bXo0eXBrYiIsImF1ZCI6InN2Y18wMWp5ZDNycTh5ZmQxOXlyMHc1bXo0eXBrYiIsImV4cCI6MTgwNDk1NDQ2NiwiaWF0IjoxODA0OTUwODY2fQ.",
    "LdMSrvSxjWlZ-TVLGkogeXz0ppKw3RElBDmytfOj9XORWXoms9JOptIiiCxcjw2LM27WXR_fUdghZar4ed4n-A",
);

fn text() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String)
}

fn bounded_text(min: usize, max: usize) -> ObjectBuilder {
    text().min_length(Some(min)).max_length(Some(max))
}

fn score() -> ObjectBuilder {
    let (min, max) = Score::RANGE;
    ObjectBuilder::new().schema_type(Type::Number).minimum(Some(f64::from(min))).maximum(Some(f64::from(max)))
}

fn format(name: &str) -> SchemaFormat {
    SchemaFormat::Custom(name.to_owned())
}

describe! {
    /// Display name: 1 to 128 printable characters without leading or trailing spaces. Invisible and private-use
    /// characters are refused.
    DisplayName = bounded_text(1, DisplayName::MAX_LEN).pattern(Some(PRINTABLE_LINE)).examples(["Invoice agent"]);
    /// A name for what one set of files declares: `countersign apply --prune` deletes only what has the name of its files. 1 to 63
    /// ASCII letters, digits, `-`, `_` and `.`, with a letter or digit at both ends.
    ManagedBy = bounded_text(1, ManagedBy::MAX_LEN).pattern(Some("^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")).examples(["platform-team"]);
    /// The `iss` claim of the tokens of a human user.
    IssuerText = bounded_text(1, IssuerText::MAX_LEN).pattern(Some(PRINTABLE_LINE)).examples(["https://login.example.com"]);
    /// The `sub` claim of the tokens of a human user.
    SubjectText = bounded_text(1, SubjectText::MAX_LEN).pattern(Some(PRINTABLE_LINE)).examples(["f0c4a1"]);
    /// An e-mail address of at most 254 bytes. Letters and digits may be of any script.
    EmailAddress = bounded_text(3, EmailAddress::MAX_LEN).format(Some(format("idn-email"))).examples(["ops@example.org"]);
    /// Free text of at most 1024 characters. Line feeds are allowed, other control characters are not.
    Description = bounded_text(0, Description::MAX_LEN).pattern(Some(MULTILINE_TEXT)).examples(["Reads invoices"]);
    /// Free-form JSON object of at most 8 KiB. Duplicate names are refused.
    Metadata = ObjectBuilder::new()
        .schema_type(Type::Object)
        .additional_properties(Some(AdditionalProperties::<Schema>::FreeForm(true)))
        .examples([json!({ "team": "billing" })]);
    /// A time (RFC 3339). Requests may use any UTC offset; responses are in UTC with `Z`.
    Timestamp = text()
        .format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)))
        .examples(["2027-03-14T15:09:26.535897Z"]);
}

schemas! {
    /// Text.
    TextSchema = text();
    /// True or false.
    BooleanSchema = ObjectBuilder::new().schema_type(Type::Boolean);
    /// Name of a role: 1 to 64 printable characters without leading or trailing spaces. The name is unique at the service and
    /// cannot be changed.
    RoleNameSchema = bounded_text(1, RoleName::MAX_LEN).pattern(Some(PRINTABLE_LINE)).examples(["billing-reader"]);
    /// Name of a permission: 1 to 128 visible ASCII characters except comma.
    PermissionSchema = bounded_text(1, Permission::MAX_LEN).pattern(Some("^[!-+\\--~]+$")).examples(["invoices:read"]);
    /// A P-256 public key: one PEM block `PUBLIC KEY`. The private key stays with the agent.
    PublicKeySchema = bounded_text(1, MAX_PEM_BYTES).format(Some(format("pem-public-key"))).examples([
        "-----BEGIN PUBLIC KEY-----\nMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEaxfR8uEsQkf4vOblY6RA8ncDfYEt\n6zOg9KE5RdiYwpZP40Li/hp/m47n60p8D54WK84zV2sxXs7LtkBoN79R9Q==\n-----END PUBLIC KEY-----\n",
    ]);
    /// `sha256:` and the SHA-256 of the uncompressed public key in DER (`SubjectPublicKeyInfo`), in hex.
    PublicKeyHashSchema = text()
        .pattern(Some("^sha256:[0-9a-f]{64}$"))
        .examples(["sha256:5cd252fb0ce8932436faf8ccd1040981b89ee4ad6b9fe9e2a2b7e71aacb27cd3"]);
    /// Scope of a service API key. `full`: every operation that accepts a service API key. `sync`: only verifying tokens and
    /// the sync stream of the sidecar.
    KeyScopeSchema = text().enum_values(Some([KeyScope::Full.as_str(), KeyScope::Sync.as_str()])).examples(["full"]);
    /// Status of an agent. A `suspended` agent can become `active` again; `revoked` is permanent.
    AgentStatusSchema = text().enum_values(Some(["active", "suspended", "revoked"])).examples(["active"]);
    /// An expiry time in the future (RFC 3339, any UTC offset). Fractions of a second are dropped.
    ExpiryTimeSchema = text()
        .format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)))
        .examples(["2099-12-31T23:00:00Z"]);
    /// A score from 0 to 100. Decimals are allowed and are rounded to six places.
    FeedbackScoreSchema = score().examples([json!(87.5)]);
    /// Trust score of an agent: 0 to 100, in steps of 0.01. The trust score of a new agent is 50.
    TrustScoreSchema = score().examples([json!(62.35)]);
    /// A number of a change in the change feed. A sidecar whose view has reached this revision knows the result of the request. If the
    /// request changed nothing that sidecars know, this is the newest revision.
    RevisionSchema = ObjectBuilder::new()
        .schema_type(Type::Integer)
        .format(Some(SchemaFormat::KnownFormat(KnownFormat::Int64)))
        .minimum(Some(0.0))
        .examples([json!(1_804_950_866_535_897_i64)]);
    /// A number of seconds for which a request waits.
    WaitSecondsSchema = ObjectBuilder::new()
        .schema_type(Type::Integer)
        .minimum(Some(0.0))
        .default(Some(json!(0)));
    /// Id of a challenge, which agents must treat as opaque text.
    ChallengeIdSchema = text().examples(["chal_AZeaPF0ee0KfYBwtPk9aawGXmjxdHntCn2AcLT5PWmsABmmX3zR4gEtDsK7jViTNlbkQGJs9wjE0imKfXO7QMsPocG7EfZv6-wD7QlCwGN2WVDXKUMuDbg"]);
    /// 256 random bits as 64 lower-case hex digits. The agent signs the 64 digits as UTF-8 text.
    NonceSchema = text()
        .pattern(Some("^[0-9a-f]{64}$"))
        .examples(["b94d27b9934d3e08a52e52d7da7dabfac484efe37a5380ee9088f7ace2efcde9"]);
    /// Hex of an ECDSA signature (P-256, SHA-256) over the characters of the nonce: 64 bytes r‖s, or DER. A malformed
    /// signature is answered like a signature that does not verify: with 400 `INVALID_SIGNATURE`.
    SignatureSchema = text().examples(["2dd312aef4b18d6959f9354b1a4a20797cf4a692b0dd11250439b2b5f3a3f57391597a26b3d24ea6d222882c5c8f0d8b336ed65d1fdf51d82165aaf879de27f8"]);
    /// A JWT (RFC 9068), signed with ES256 by a key in `/.well-known/jwks.json`. The claims about roles and trust in the JWT
    /// are from the time of issue: use `/services/{service}/verify` or a sidecar for the current values.
    AccessTokenSchema = text().examples([EXAMPLE_JWT]);
    /// An access token as a bearer credential: `Bearer <token>`.
    BearerAccessTokenSchema = text().examples([format!("Bearer {EXAMPLE_JWT}")]);
    /// Opaque text that starts with `rf_`. A refresh token can be used once: each refresh returns the next refresh token.
    RefreshTokenSchema = text().examples([format!("rf_01jyd3rq8yfd19yr0w5mz4ypkb{}", "0".repeat(64))]);
    /// An access token or a refresh token.
    AnyTokenSchema = text().min_length(Some(1)).examples([format!("rf_01jyd3rq8yfd19yr0w5mz4ypkb{}", "0".repeat(64))]);
    /// An audited action. The names of actions are stable; later versions may add actions.
    AuditActionSchema = text().enum_values(Some(AuditAction::ALL.iter().map(|action| action.as_str()))).examples(["role.assigned"]);
    /// Additional fields of an audit entry; their names depend on the action. Later versions may add fields.
    AuditDetailsSchema = ObjectBuilder::new()
        .schema_type(Type::Object)
        .examples([json!({ "name": "editor", "until": null })]);
    /// An `https://` URL of at most 2048 characters, with port 443 or a port from 1024 up, without user name, password and
    /// fragment. The host of the URL must resolve to public addresses, or to networks that the operator allows; URLs to allowed
    /// networks may use `http://`.
    WebhookUrlSchema = bounded_text(1, TargetUrl::MAX_LENGTH)
        .format(Some(format("uri")))
        .examples(["https://billing.example.org/hooks/countersign"]);
    /// Secret that signs deliveries: `whsec_` and the base64 of 32 bytes. Only the response to its creation contains the
    /// secret.
    WebhookSecretSchema = text()
        .pattern(Some("^whsec_[A-Za-z0-9+/]{43}=$"))
        .examples([format!("whsec_{}=", "A".repeat(43))]);
    /// `active`: events are delivered. `paused`: events are kept and delivered later.
    WebhookStatusSchema = text().enum_values(Some(["active", "paused"])).examples(["paused"]);
    /// `pending` (attempts continue), `delivered`, or `dead` (all attempts failed).
    DeliveryStatusSchema = text().enum_values(Some(DeliveryStatus::ALL.iter().map(|status| status.as_str()))).examples(["delivered"]);
    /// Final status of a delivery: `delivered` or `dead`.
    FinalDeliveryStatusSchema = text().enum_values(Some(["delivered", "dead"])).examples(["dead"]);
    /// A kind of event.
    EventKindSchema = text().enum_values(Some(EventKind::filterable().map(EventKind::as_str))).examples(["agent.role_revoked"]);
    /// An event in the form in which webhooks receive it. See `webhooks` in this OpenAPI description.
    EventPayloadSchema = ObjectBuilder::new().schema_type(Type::Object).examples([json!({
        "event": "agent.role_revoked",
        "timestamp": "2027-03-14T15:09:26.535897Z",
        "data": {
            "agentId": "agent_01jyd3rq8yfd19yr0w5mz4ypkb",
            "serviceId": "svc_01jyd3rq8yfd19yr0w5mz4ypkb",
            "roleId": "role_01jyd3rq8yfd19yr0w5mz4ypkb",
            "roleName": "billing-reader",
            "reason": "revoked",
        },
    })]);
    /// Any JSON object.
    AnyObjectSchema = ObjectBuilder::new().schema_type(Type::Object);
    /// JWK set (RFC 7517) of P-256 public keys for ES256.
    JwkSetSchema = ObjectBuilder::new()
        .schema_type(Type::Object)
        .property("keys", ArrayBuilder::new().items(RefOr::<Schema>::from(Ref::from_schema_name(JwkSchema::name()))))
        .required("keys");
    /// Public key (RFC 7517).
    JwkSchema = ["kty", "crv", "x", "y", "kid", "use", "alg"]
        .into_iter()
        .fold(ObjectBuilder::new().schema_type(Type::Object), |key, name| key.property(name, text()).required(name))
        .examples([json!({
            "kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": "oKIywvGUpTVTyxMQ3bwIIeQUudfr_CkLMjCE19ECD-U",
            "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU", "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0",
        })]);
    /// Revocation request of an OAuth client (RFC 7009). Unknown parameters are ignored. Repeated parameters are an error.
    RevocationFormSchema = ObjectBuilder::new()
        .schema_type(Type::Object)
        .property("token", Ref::from_schema_name(AnyTokenSchema::name()))
        .property("token_type_hint", Ref::from_schema_name(TextSchema::name()))
        .required("token")
        .additional_properties(Some(Ref::from_schema_name(TextSchema::name())));
    /// A service API key. Only the response to its creation contains the key: the server stores a hash.
    ApiKeySchema = text()
        .pattern(Some("^svc_sk_[0-9a-hjkmnp-tv-z]{26}[0-9a-f]{64}$"))
        .examples([format!("svc_sk_01jyd3rq8yfd19yr0w5mz4ypkb{}", "0".repeat(64))]);
    /// Permissions, separated by single spaces (RFC 6749, section 3.3).
    ScopeSchema = text()
        .max_length(Some(Scope::MAX_BYTES))
        .pattern(Some(r"^([!#-\[\]-~]+( [!#-\[\]-~]+)*)?$"))
        .examples(["invoices:read invoices:write"]);
    /// What a client presents at the token endpoint.
    GrantTypeSchema = text().enum_values(Some(["client_credentials", "refresh_token"])).examples(["client_credentials"]);
    /// The kind of a client assertion: a signed JWT.
    AssertionTypeSchema = text().enum_values(Some([ASSERTION_TYPE])).examples([ASSERTION_TYPE]);
    #[doc = "`http` or `https`, without user name, query and fragment. Responses have lower-case schemes and hosts, no default port, and no slash at the end."]
    ResourceUrisSchema = ArrayBuilder::new()
        .items(
            text()
                .max_length(Some(ResourceUri::MAX_BYTES))
                .format(Some(format("resource-uri")))
                .examples(["https://api.example/mcp"]),
        )
        .max_items(Some(ResourceUri::MAX_PER_SERVICE))
        .unique_items(true);
    /// Names of permissions. Responses are sorted and have no duplicates; in requests, order and duplicates do not matter.
    PermissionsSchema = ArrayBuilder::new().items(RefOr::<Schema>::from(Ref::from_schema_name(PermissionSchema::name())));
    /// Kinds of events that the webhook receives, without duplicates. `["*"]` means all kinds, including kinds that later versions add.
    EventFilterSchema = {
        let array = |item: RefOr<Schema>| ArrayBuilder::new().items(item).min_items(Some(1)).unique_items(true);
        let all = Schema::Object(text().enum_values(Some([EventFilter::ALL])).build());
        OneOfBuilder::new()
            .item(array(Ref::from_schema_name(EventKindSchema::name()).into()))
            .item(array(all.into()).max_items(Some(1)))
    };
}
