//! Names, texts, keys, credentials, instants and numbers.

use super::words;
use crate::domain::{
    audit,
    service::KeyScope,
    text::{Description as DescriptionText, DisplayName as Name, EmailAddress},
    trust::Score as Points,
    webhook::{
        delivery::DeliveryStatus as Standing,
        event::{EventFilter as Filter, EventKind as Kind},
        url::TargetUrl,
    },
};
use countersign_identity::{Permission as PermissionName, RoleName as Role, public_key::MAX_PEM_BYTES};
use std::borrow::Cow;
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        KnownFormat, Ref, RefOr, Schema, SchemaFormat, Type,
        schema::{AdditionalProperties, ArrayBuilder, ObjectBuilder, OneOfBuilder},
    },
};

/// A line that a person can read. The pattern is that of `identity::names::is_printable`, but for tags and private use
/// beyond U+FFFF, which are refused as well and which a pattern cannot name in a way that all readers of it know.
const LINE: &str = concat!(
    r"^[^\u0000-\u0020\u007f-\u00a0\u00ad\u061c\u1680\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ue000-\uf8ff\ufeff\ufff9-\ufffb]",
    r"([^\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ue000-\uf8ff\ufeff\ufff9-\ufffb]*",
    r"[^\u0000-\u0020\u007f-\u00a0\u00ad\u061c\u1680\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ue000-\uf8ff\ufeff\ufff9-\ufffb])?$",
);

/// Lines without control characters.
const PROSE: &str = r"^[^\u0000-\u0009\u000b-\u001f\u007f-\u009f]*$";

fn text() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String)
}

fn sized(least: usize, most: usize) -> ObjectBuilder {
    text().min_length(Some(least)).max_length(Some(most))
}

fn number() -> ObjectBuilder {
    let (least, most) = Points::RANGE;
    ObjectBuilder::new().schema_type(Type::Number).minimum(Some(f64::from(least))).maximum(Some(f64::from(most)))
}

fn format(name: &str) -> SchemaFormat {
    SchemaFormat::Custom(name.to_owned())
}

words! {
    /// Text.
    Text = text();
    /// True or false.
    Truth = ObjectBuilder::new().schema_type(Type::Boolean);
    /// What people call it: 1 to 128 printable characters without spaces at the ends. Invisible characters, private use
    /// and the like are refused.
    DisplayName = sized(1, Name::MAX_LEN).pattern(Some(LINE)).examples(["Invoice agent"]);
    /// An e-mail address, of letters and digits of any script; at most 254 bytes.
    Email = sized(3, EmailAddress::MAX_LEN).format(Some(format("idn-email"))).examples(["ops@example.org"]);
    /// Why, or what for: at most 1024 characters on any number of lines, without other control characters.
    Description = sized(0, DescriptionText::MAX_LEN).pattern(Some(PROSE)).examples(["Reads invoices"]);
    /// The name of a role: 1 to 64 printable characters without spaces at the ends; unique at its service, never changed.
    RoleName = sized(1, Role::MAX_LEN).pattern(Some(LINE)).examples(["billing-reader"]);
    /// What a role permits: 1 to 128 visible ASCII characters, no comma.
    Permission = sized(1, PermissionName::MAX_LEN).pattern(Some("^[!-+\\--~]+$")).examples(["invoices:read"]);
    /// Free-form JSON: an object of at most 8 KiB, in which no name stands twice.
    Metadata = ObjectBuilder::new()
        .schema_type(Type::Object)
        .additional_properties(Some(AdditionalProperties::<utoipa::openapi::Schema>::FreeForm(true)))
        .examples([serde_json::json!({ "team": "billing" })]);
    /// One public key on P-256 as a PEM block `PUBLIC KEY`. The private half never leaves its holder.
    PublicKey = sized(1, MAX_PEM_BYTES).format(Some(format("pem-public-key"))).examples([
        "-----BEGIN PUBLIC KEY-----\nMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEaxfR8uEsQkf4vOblY6RA8ncDfYEt\n6zOg9KE5RdiYwpZP40Li/hp/m47n60p8D54WK84zV2sxXs7LtkBoN79R9Q==\n-----END PUBLIC KEY-----\n",
    ]);
    /// `sha256:` and the SHA-256 of the key's uncompressed DER (`SubjectPublicKeyInfo`), in hex.
    PublicKeyHash = text()
        .pattern(Some("^sha256:[0-9a-f]{64}$"))
        .examples(["sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"]);
    /// What can be done with it: all is `full`; `sync` follows the stream and verifies tokens, nothing else.
    Scope = text().enum_values(Some([KeyScope::Full.as_str(), KeyScope::Sync.as_str()])).examples(["full"]);
    /// `suspended` can become `active` again; `revoked` is for good.
    AgentStatus = text().enum_values(Some(["active", "suspended", "revoked"])).examples(["active"]);
    /// An instant in UTC (RFC 3339). What is sent may have any offset; what is answered ends with `Z`.
    Instant = text()
        .format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)))
        .examples(["2027-03-14T15:09:26.535897Z"]);
    /// When it ends: an instant in the future (RFC 3339, any offset), of which the fraction of a second is dropped.
    End = text()
        .format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)))
        .examples(["2099-12-31T23:00:00Z"]);
    /// A score from 0 to 100, decimals allowed; more than six are rounded.
    Score = number().examples([serde_json::json!(87.5)]);
    /// How much the agent is trusted: 0 to 100, in hundredths. Every agent starts at 50.
    TrustScore = number().examples([serde_json::json!(62.35)]);
    /// The id of a challenge. It is opaque: what it means is known to its issuer only.
    ChallengeId = text().examples(["chal_0197…"]);
    /// 256 random bits in lower-case hex. Sign these 64 characters, as they stand.
    Nonce = text()
        .pattern(Some("^[0-9a-f]{64}$"))
        .examples(["b94d27b9934d3e08a52e52d7da7dabfac484efe37a5380ee9088f7ace2efcde9"]);
    /// The hex of an ECDSA signature (P-256, SHA-256) over the characters of the nonce: 64 bytes r‖s, or DER. Text that
    /// is no signature is 400 `INVALID_SIGNATURE`, as is one that does not fit.
    Signature = text().examples(["3045022100…"]);
    /// A JWT (RFC 9068), signed with ES256 by a key of `/.well-known/jwks.json`. What it says of roles and trust may be
    /// outdated: ask `/services/{service}/verify`, or let a sidecar ask.
    AccessToken = text().examples(["eyJhbGciOiJFUzI1NiIs…"]);
    /// Opaque, begins with `rf_`. It can be used once: each answer has the next one.
    RefreshToken = text().examples(["rf_0197…"]);
    /// An access token or a refresh token; not empty.
    AnyToken = text().min_length(Some(1)).examples(["rf_0197…"]);
    /// An audited action. Names are stable; later versions may add some.
    AuditAction = text().enum_values(Some(audit::AuditAction::ALL.iter().map(|action| action.as_str()))).examples(["role.assigned"]);
    /// Additional fields of an audit entry; their names depend on the action. Later versions may add some.
    AuditDetails = ObjectBuilder::new()
        .schema_type(Type::Object)
        .examples([serde_json::json!({ "name": "editor", "until": null })]);
    /// An `https://` URL of at most 2048 characters, with port 443 or one from 1024 on, without user name, password and
    /// fragment. Its host leads to public addresses, or to networks that the operator lists; to these, `http://` will do.
    WebhookUrl = sized(1, TargetUrl::MAX_LENGTH)
        .format(Some(format("uri")))
        .examples(["https://billing.example.org/hooks/countersign"]);
    /// What signs deliveries: `whsec_` and the base64 of 32 bytes. It is shown here and never again.
    WebhookSecret = text()
        .pattern(Some("^whsec_[A-Za-z0-9+/]{43}=$"))
        .examples([format!("whsec_{}=", "A".repeat(43))]);
    /// Whether events are delivered.
    WebhookStatus = text().enum_values(Some(["active", "paused"])).examples(["paused"]);
    /// `pending` (on its way), `delivered`, or `dead` (tried no more).
    DeliveryStatus = text().enum_values(Some(Standing::ALL.iter().map(|standing| standing.as_str()))).examples(["delivered"]);
    /// `delivered` or `dead`.
    Ending = text().enum_values(Some(["delivered", "dead"])).examples(["dead"]);
    /// A kind of event.
    EventKind = text().enum_values(Some(Kind::filterable().map(Kind::as_str))).examples(["agent.role_revoked"]);
    /// An event as it is sent: see the section `webhooks`.
    EventPayload = ObjectBuilder::new().schema_type(Type::Object).examples([serde_json::json!({
        "event": "webhook.test",
        "timestamp": "2027-03-14T15:09:26.535897Z",
        "data": { "webhookId": "wh_01jyd3rq8yfd19yr0w5mz4ypkb", "serviceId": "svc_01jyd3rq8yfd19yr0w5mz4ypkb" },
    })]);
    /// Any JSON object.
    AnyObject = ObjectBuilder::new().schema_type(Type::Object);
    /// A set of public keys (RFC 7517), each for ES256 on P-256.
    KeySet = ObjectBuilder::new()
        .schema_type(Type::Object)
        .property("keys", ArrayBuilder::new().items(RefOr::<Schema>::from(Ref::from_schema_name(PublishedKey::name()))))
        .required("keys");
    /// A public key (RFC 7517).
    PublishedKey = ["kty", "crv", "x", "y", "kid", "use", "alg"]
        .into_iter()
        .fold(ObjectBuilder::new().schema_type(Type::Object), |key, name| key.property(name, text()).required(name))
        .examples([serde_json::json!({
            "kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": "2026-10-31a",
            "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU", "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0",
        })]);
    /// A token to be revoked, as OAuth clients say it. Parameters that are not known are ignored; none may
    /// stand twice.
    RevocationForm = ObjectBuilder::new()
        .schema_type(Type::Object)
        .property("token", Ref::from_schema_name(AnyToken::name()))
        .property("token_type_hint", Ref::from_schema_name(Text::name()))
        .required("token")
        .additional_properties(Some(Ref::from_schema_name(Text::name())));
    /// A service API key. It is shown here and never again: only its hash is kept.
    ApiKey = text()
        .pattern(Some("^svc_sk_[0-9a-hjkmnp-tv-z]{26}[0-9a-f]{64}$"))
        .examples([format!("svc_sk_01jyd3rq8yfd19yr0w5mz4ypkb{}", "0".repeat(64))]);
}

/// What a role permits, or an agent is permitted: sorted, none twice.
pub enum Permissions {}

impl PartialSchema for Permissions {
    fn schema() -> RefOr<Schema> {
        let item = Ref::from_schema_name(Permission::name());
        let list = ArrayBuilder::new()
            .items(RefOr::<Schema>::from(item))
            .description(Some("What is permitted. Order and repetition of what is sent do not count."));
        Schema::Array(list.build()).into()
    }
}

impl ToSchema for Permissions {
    fn name() -> Cow<'static, str> {
        "Permissions".into()
    }

    fn schemas(words: &mut Vec<(String, RefOr<Schema>)>) {
        words.push((Permission::name().into_owned(), Permission::schema()));
    }
}

/// Which events are told: kinds, each once; or `["*"]`, all kinds, also those to come.
pub enum EventFilter {}

impl PartialSchema for EventFilter {
    fn schema() -> RefOr<Schema> {
        let list = |item: RefOr<Schema>| ArrayBuilder::new().items(item).min_items(Some(1)).unique_items(true);
        let all = list(Schema::Object(text().enum_values(Some([Filter::ALL])).build()).into()).max_items(Some(1));
        let about = "Which events are told: kinds, each once; or `[\"*\"]`, all kinds, also those to come.";
        let either = OneOfBuilder::new()
            .item(list(Ref::from_schema_name(EventKind::name()).into()))
            .item(all)
            .description(Some(about));
        Schema::OneOf(either.build()).into()
    }
}

impl ToSchema for EventFilter {
    fn name() -> Cow<'static, str> {
        "EventFilter".into()
    }

    fn schemas(words: &mut Vec<(String, RefOr<Schema>)>) {
        words.push((EventKind::name().into_owned(), EventKind::schema()));
    }
}
