//! Ids in bodies, and as path parameters.

use super::schemas;
use countersign_identity as identity;
use utoipa::{
    IntoParams, ToSchema,
    openapi::{
        Ref, RefOr, Required, Schema, Type,
        path::{Parameter, ParameterBuilder, ParameterIn},
        schema::ObjectBuilder,
    },
};

/// The value of all ids in examples.
pub const EXAMPLE_ID: u128 = 0x0197_9a3c_5d1e_7b42_9f60_1c2d_3e4f_5a6b;

/// The format of all ids: `prefix` and 26 digits of Crockford's base32. The first digit of an id encodes only three bits.
fn id(prefix: &str, example: &str) -> ObjectBuilder {
    let pattern = format!("^{prefix}[0-7][0-9a-hjkmnp-tv-z]{{25}}$");
    ObjectBuilder::new().schema_type(Type::String).pattern(Some(pattern)).examples([example])
}

macro_rules! id_schemas {
    ($($(#[doc = $doc:literal])+ $name:ident: $id:ident)+) => {
        schemas! {$(
            $(#[doc = $doc])+
            $name = id(identity::$id::PREFIX, &identity::$id::from_bits(EXAMPLE_ID).to_string());
        )+}
    };
}

id_schemas! {
    /// Id of an agent. A malformed id is answered like an unknown id: with 404 `AGENT_NOT_FOUND`.
    AgentIdSchema: AgentId
    /// Id of a service; the id is not a credential. A malformed id is answered like an unknown id: with 404
    /// `SERVICE_NOT_FOUND`.
    ServiceIdSchema: ServiceId
    /// Id of a role. A malformed id is answered like an unknown id: with 404 `ROLE_NOT_FOUND`.
    RoleIdSchema: RoleId
    /// Id of a service API key. The key is a credential, the id is not a credential.
    ApiKeyIdSchema: ApiKeyId
    /// Id of a feedback.
    FeedbackIdSchema: FeedbackId
    /// Id of a webhook. A malformed id is answered like an unknown id: with 404 `WEBHOOK_NOT_FOUND`.
    WebhookIdSchema: WebhookId
    /// Id of an event, the same in every delivery attempt. A malformed id is answered like an unknown id: with 404
    /// `NOT_FOUND`.
    EventIdSchema: EventId
}

schemas! {
    /// Id of a signing key: its JWK thumbprint (RFC 7638).
    KidSchema = ObjectBuilder::new()
        .schema_type(Type::String)
        .pattern(Some("^[A-Za-z0-9_-]{43}$"))
        .examples(["oKIywvGUpTVTyxMQ3bwIIeQUudfr_CkLMjCE19ECD-U"]);
}

/// Declares path parameters, with their names in the paths.
macro_rules! path_params {
    ($($(#[doc = $doc:literal])+ $name:ident = $parameter:literal: $schema:ty;)+) => {$(
        $(#[doc = $doc])+
        pub enum $name {}

        impl IntoParams for $name {
            fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
                vec![path_param::<$schema>($parameter, [$($doc.trim()),+].join("\n"))]
            }
        }
    )+};
}

fn path_param<T: ToSchema>(name: &str, description: String) -> Parameter {
    let schema: RefOr<Schema> = Ref::from_schema_name(T::name()).into();
    ParameterBuilder::new()
        .name(name)
        .parameter_in(ParameterIn::Path)
        .required(Required::True)
        .description(Some(description))
        .schema(Some(schema))
        .build()
}

path_params! {
    /// Id of the agent.
    AgentPathParam = "agent": AgentIdSchema;
    /// Id of the service.
    ServicePathParam = "service": ServiceIdSchema;
    /// Id of the role, which must belong to the service in the path.
    RolePathParam = "role": RoleIdSchema;
    /// Id of the API key, which must belong to the service in the path.
    KeyPathParam = "key": ApiKeyIdSchema;
    /// Id of the webhook, which must belong to the service in the path, or without a service in the path to the whole
    /// Countersign deployment.
    WebhookPathParam = "webhook": WebhookIdSchema;
    /// Id of the event.
    EventPathParam = "event": EventIdSchema;
    /// Id of the signing key.
    KidPathParam = "kid": KidSchema;
}
