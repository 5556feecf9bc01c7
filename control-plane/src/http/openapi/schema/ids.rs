//! Ids: in bodies, in answers, and as parameters of a path.

use super::words;
use countersign_identity as identity;
use utoipa::{
    IntoParams, ToSchema,
    openapi::{
        Ref, RefOr, Required, Schema, Type,
        path::{Parameter, ParameterBuilder, ParameterIn},
        schema::ObjectBuilder,
    },
};

/// 128 bits, as they stand in examples.
const EXAMPLE: u128 = 0x0197_9a3c_5d1e_7b42_9f60_1c2d_3e4f_5a6b;

/// The form of all ids: `prefix` and 26 digits of Crockford's base32, of which the first carries three bits.
fn id(prefix: &str, example: &str) -> ObjectBuilder {
    let pattern = format!("^{prefix}[0-7][0-9a-hjkmnp-tv-z]{{25}}$");
    ObjectBuilder::new().schema_type(Type::String).pattern(Some(pattern)).examples([example])
}

macro_rules! ids {
    ($($(#[doc = $doc:literal])+ $name:ident)+) => {
        words! {$(
            $(#[doc = $doc])+
            $name = id(identity::$name::PREFIX, &identity::$name::from_bits(EXAMPLE).to_string());
        )+}
    };
}

ids! {
    /// The id of an agent. One that does not have this form does not exist: 404 `AGENT_NOT_FOUND`.
    AgentId
    /// The id of a service; no credential. One that does not have this form does not exist: 404 `SERVICE_NOT_FOUND`.
    ServiceId
    /// The id of a role. One that does not have this form does not exist: 404 `ROLE_NOT_FOUND`.
    RoleId
    /// The id of a service API key; no credential, and not enough to use the key.
    ApiKeyId
    /// The id of a feedback.
    FeedbackId
    /// The id of a webhook. One that does not have this form does not exist: 404 `WEBHOOK_NOT_FOUND`.
    WebhookId
    /// The id of an event, the same on every try to deliver it. One that does not have this form does not exist: 404
    /// `NOT_FOUND`.
    EventId
}

words! {
    /// The id of a signing key: its thumbprint (RFC 7638).
    Kid = ObjectBuilder::new()
        .schema_type(Type::String)
        .pattern(Some("^[A-Za-z0-9_-]{43}$"))
        .examples(["NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs"]);
}

/// Parameters of paths, by the names that stand in the paths.
macro_rules! in_path {
    ($($(#[doc = $doc:literal])+ $name:ident = $parameter:literal: $schema:ty;)+) => {$(
        $(#[doc = $doc])+
        pub enum $name {}

        impl IntoParams for $name {
            fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
                vec![in_path::<$schema>($parameter, [$($doc.trim()),+].join("\n"))]
            }
        }
    )+};
}

fn in_path<T: ToSchema>(name: &str, description: String) -> Parameter {
    let schema: RefOr<Schema> = Ref::from_schema_name(T::name()).into();
    ParameterBuilder::new()
        .name(name)
        .parameter_in(ParameterIn::Path)
        .required(Required::True)
        .description(Some(description))
        .schema(Some(schema))
        .build()
}

in_path! {
    /// The agent.
    AgentInPath = "agent": AgentId;
    /// The service.
    ServiceInPath = "service": ServiceId;
    /// The role, of this service.
    RoleInPath = "role": RoleId;
    /// The API key, of this service.
    KeyInPath = "key": ApiKeyId;
    /// The webhook, at this place.
    WebhookInPath = "webhook": WebhookId;
    /// The event.
    EventInPath = "event": EventId;
    /// The signing key.
    KidInPath = "kid": Kid;
}
