//! Every route as data: who may call it, and which body it reads. A new route must be added to this list, except a route of OAuth:
//! those read forms and have the errors of OAuth (`tests/tests/api/oauth.rs`).

use reqwest::RequestBuilder;
use serde_json::{Map, Value};
use std::fmt;

use FieldType::{Array, Boolean, MultiLine, Number, Object, Objects, SingleLine};

/// Who may call a route. The module `credentials` has the errors for callers who may not call a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// All callers. Credentials are ignored.
    Public,
    /// All callers without a credential, because registration is public in the test configuration, and human users.
    PublicOrHuman,
    /// API keys of the service, with either scope.
    Verifier,
    /// API keys of any service, with scope `full`.
    AnyFullKey,
    /// API keys of the service with scope `full`, its owner, and administrators.
    Manager,
    /// The owner of the service, and administrators.
    Owner,
    /// The human user to whom the service is offered.
    Receiver,
    /// Any human user.
    HumanUser,
    /// Administrators.
    Admin,
}

/// Whether a path belongs to an endpoint of OAuth.
pub fn is_of_oauth(path: &str) -> bool {
    path.starts_with("/oauth/")
}

#[derive(Debug)]
pub struct Route {
    pub method: &'static str,
    /// Path as in the router. The fixture replaces the names in braces with ids.
    pub path: &'static str,
    pub access: Access,
    /// Status of a valid request.
    pub success_status: u16,
    /// Status of the same request when repeated, if it differs because the first request consumed the resource.
    pub repeated_status: Option<u16>,
    /// The fields of the body; empty for a route that reads no body.
    pub fields: &'static [Field],
}

/// The method and the path.
impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.path)
    }
}

/// The type of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldType {
    /// A non-empty string on one line.
    SingleLine,
    /// A string that may be empty or have several lines.
    MultiLine,
    Boolean,
    /// A number from 0 to 100.
    Number,
    Object,
    /// An array of strings.
    Array,
    /// An array of objects.
    Objects,
}

/// A field of a body.
#[derive(Debug)]
pub struct Field {
    pub name: &'static str,
    pub kind: FieldType,
    /// A valid JSON value. The fixture replaces placeholders such as `<agent>`.
    pub valid_value: &'static str,
    pub required: bool,
    /// Expected status and error code for an invalid or unknown value.
    pub invalid_value_error: (u16, &'static str),
}

const fn field(name: &'static str, kind: FieldType, valid_value: &'static str) -> Field {
    Field { name, kind, valid_value, required: true, invalid_value_error: (400, "VALIDATION_ERROR") }
}

impl Field {
    const fn optional(self) -> Self {
        Self { required: false, ..self }
    }

    const fn with_invalid_value_error(self, status: u16, code: &'static str) -> Self {
        Self { invalid_value_error: (status, code), ..self }
    }
}

const fn managed_by() -> Field {
    field("managedBy", SingleLine, r#""team-<number>""#).optional()
}

const fn service_id() -> Field {
    field("serviceId", SingleLine, r#""<service>""#).with_invalid_value_error(404, "SERVICE_NOT_FOUND").optional()
}

const fn route(
    method: &'static str,
    path: &'static str,
    access: Access,
    success_status: u16,
    fields: &'static [Field],
) -> Route {
    Route { method, path, access, success_status, repeated_status: None, fields }
}

impl Route {
    const fn with_repeated_status(self, status: u16) -> Self {
        Self { repeated_status: Some(status), ..self }
    }

    /// Adds the body, if the route reads one.
    pub fn with_body(&self, request: RequestBuilder, body: &Map<String, Value>) -> RequestBuilder {
        if self.fields.is_empty() { request } else { request.json(body) }
    }

    /// Whether the status is an expected success.
    pub fn accepts(&self, status: u16) -> bool {
        status == self.success_status || Some(status) == self.repeated_status
    }

    /// The body limit in bytes.
    pub fn body_limit(&self) -> usize {
        let kibibytes = if self.path.starts_with("/auth/") && self.path != "/auth/revoke" { 16 } else { 64 };
        kibibytes * 1024
    }
}

/// The fields of a new webhook.
const WEBHOOK: &[Field] = &[
    field("url", SingleLine, r#""<receiver>""#),
    field("events", Array, r#"["agent.role_assigned"]"#).optional(),
    field("description", MultiLine, r#""Why""#).optional(),
    managed_by(),
];

/// The fields of a change of a webhook.
const WEBHOOK_CHANGE: &[Field] = &[
    field("url", SingleLine, r#""<receiver>""#).optional(),
    field("events", Array, r#"["agent.role_assigned"]"#).optional(),
    field("description", MultiLine, r#""Why""#).optional(),
    managed_by(),
    field("status", SingleLine, r#""active""#).optional(),
];

/// The fields of a replay of deliveries.
const REPLAY: &[Field] = &[
    field("since", SingleLine, r#""2020-01-01T00:00:00Z""#),
    field("status", SingleLine, r#""delivered""#).optional(),
];

pub const ROUTES: &[Route] = &[
    route(
        "POST",
        "/auth/register",
        Access::PublicOrHuman,
        201,
        &[
            field("email", SingleLine, r#""<number>@example.org""#),
            field("name", SingleLine, r#""Agent""#),
            field("publicKey", MultiLine, r#""<pem>""#),
            field("metadata", Object, r#"{"team":"blue"}"#).optional(),
        ],
    ),
    route(
        "POST",
        "/auth/challenge",
        Access::Public,
        200,
        &[field("agentId", SingleLine, r#""<agent>""#).with_invalid_value_error(404, "AGENT_NOT_FOUND"), service_id()],
    ),
    route(
        "POST",
        "/auth/authenticate",
        Access::Public,
        200,
        &[
            field("challengeId", SingleLine, r#""<challenge>""#).with_invalid_value_error(401, "AUTHENTICATION_FAILED"),
            field("signature", SingleLine, r#""<signature>""#).with_invalid_value_error(400, "INVALID_SIGNATURE"),
            service_id(),
        ],
    ),
    route(
        "POST",
        "/auth/refresh",
        Access::Public,
        200,
        &[
            field("refreshToken", SingleLine, r#""<refresh>""#).with_invalid_value_error(401, "AUTHENTICATION_FAILED"),
            service_id(),
        ],
    ),
    route(
        "POST",
        "/auth/revoke",
        Access::Public,
        200,
        // The revocation of an unknown token returns 200 (RFC 7009, section 2.2). The revocation route also accepts a
        // form instead of JSON.
        &[
            field("token", SingleLine, r#""rf_unknown""#).with_invalid_value_error(200, ""),
            field("token_type_hint", SingleLine, r#""refresh_token""#).optional().with_invalid_value_error(200, ""),
        ],
    ),
    route("GET", "/services", Access::HumanUser, 200, &[]),
    route(
        "POST",
        "/services",
        Access::HumanUser,
        201,
        &[
            field("name", SingleLine, r#""Service""#),
            field("acceptsUnboundTokens", Boolean, "true").optional(),
            managed_by(),
        ],
    ),
    route("GET", "/services/{service}", Access::Owner, 200, &[]),
    route(
        "PATCH",
        "/services/{service}",
        Access::Owner,
        200,
        &[
            field("name", SingleLine, r#""Service""#).optional(),
            field("acceptsUnboundTokens", Boolean, "true").optional(),
            field("resourceUris", Array, r#"["https://<number>.example"]"#).optional(),
            managed_by(),
        ],
    ),
    route("DELETE", "/services/{service}", Access::Owner, 200, &[]).with_repeated_status(404),
    route(
        "PUT",
        "/services/{service}/transfer",
        Access::Owner,
        200,
        &[
            field("subject", SingleLine, r#""receiver""#),
            field("issuer", SingleLine, r#""urn:countersign:operator""#).optional(),
        ],
    ),
    route("GET", "/services/{service}/transfer", Access::Owner, 200, &[]),
    route("DELETE", "/services/{service}/transfer", Access::Owner, 200, &[]).with_repeated_status(404),
    route("POST", "/services/{service}/transfer/accept", Access::Receiver, 200, &[]).with_repeated_status(404),
    route("GET", "/transfers", Access::HumanUser, 200, &[]),
    route(
        "POST",
        "/services/{service}/keys",
        Access::Owner,
        201,
        &[field("name", SingleLine, r#""Key""#), field("scope", SingleLine, r#""sync""#), managed_by()],
    ),
    route("GET", "/services/{service}/keys", Access::Owner, 200, &[]),
    route("DELETE", "/services/{service}/keys/{key}", Access::Owner, 200, &[]),
    route("GET", "/services/{service}/sidecars", Access::Manager, 200, &[]),
    route("GET", "/services/{service}/enforcement", Access::Manager, 200, &[]),
    route("GET", "/services/{service}/verify", Access::Verifier, 200, &[]),
    route(
        "POST",
        "/services/{service}/roles",
        Access::Manager,
        201,
        &[
            field("name", SingleLine, r#""Role <number>""#),
            field("permissions", Array, r#"["read"]"#),
            field("description", MultiLine, r#""Reads""#).optional(),
            managed_by(),
        ],
    ),
    route("GET", "/services/{service}/roles", Access::Manager, 200, &[]),
    route(
        "PATCH",
        "/services/{service}/roles/{role}",
        Access::Manager,
        200,
        &[
            field("permissions", Array, r#"["read"]"#).optional(),
            field("description", MultiLine, r#""Reads""#).optional(),
            managed_by(),
        ],
    ),
    route("GET", "/services/{service}/agents", Access::Manager, 200, &[]),
    route("DELETE", "/services/{service}/roles/{role}", Access::Manager, 200, &[]).with_repeated_status(404),
    route("GET", "/services/{service}/agents/{agent}", Access::Manager, 200, &[]),
    route(
        "POST",
        "/services/{service}/agents/{agent}/roles",
        Access::Manager,
        200,
        &[
            field("roleId", SingleLine, r#""<role>""#).with_invalid_value_error(404, "ROLE_NOT_FOUND"),
            field("expiresAt", SingleLine, r#""2099-01-01T00:00:00Z""#).optional(),
            managed_by(),
        ],
    ),
    route(
        "POST",
        "/services/{service}/assignments",
        Access::Manager,
        200,
        &[field("changes", Objects, r#"[{"agentId":"<agent>","roleId":"<role>"}]"#)],
    ),
    route("DELETE", "/services/{service}/agents/{agent}/roles/{role}", Access::Manager, 200, &[]),
    route("GET", "/agents", Access::HumanUser, 200, &[]),
    route("DELETE", "/agents/{agent}", Access::Owner, 200, &[]).with_repeated_status(404),
    route("GET", "/agents/{agent}/services", Access::Owner, 200, &[]),
    route("PUT", "/agents/{agent}/services/{service}", Access::Owner, 200, &[field("mayAssignRoles", Boolean, "true")]),
    route("PUT", "/agents/{agent}/status", Access::Owner, 200, &[field("status", SingleLine, r#""active""#)]),
    route(
        "POST",
        "/trust/feedback",
        Access::AnyFullKey,
        200,
        &[
            field("agentId", SingleLine, r#""<agent>""#).with_invalid_value_error(404, "AGENT_NOT_FOUND"),
            field("score", Number, "87.5"),
            field("reason", MultiLine, r#""As agreed""#).optional(),
            field("metadata", Object, r#"{"order":7}"#).optional(),
        ],
    ),
    route("GET", "/trust/agents/{agent}/history", Access::AnyFullKey, 200, &[]),
    route("GET", "/services/{service}/webhooks", Access::Manager, 200, &[]),
    // Repeated requests return 409 when the collection has ten webhooks.
    route("POST", "/services/{service}/webhooks", Access::Manager, 201, WEBHOOK).with_repeated_status(409),
    route("GET", "/services/{service}/webhooks/{webhook}", Access::Manager, 200, &[]),
    route("PATCH", "/services/{service}/webhooks/{webhook}", Access::Manager, 200, WEBHOOK_CHANGE),
    route("DELETE", "/services/{service}/webhooks/{webhook}", Access::Manager, 200, &[]).with_repeated_status(404),
    route("POST", "/services/{service}/webhooks/{webhook}/rotate-secret", Access::Manager, 200, &[]),
    route("POST", "/services/{service}/webhooks/{webhook}/test", Access::Manager, 202, &[]),
    route("GET", "/services/{service}/webhooks/{webhook}/deliveries", Access::Manager, 200, &[]),
    route("GET", "/services/{service}/webhooks/{webhook}/deliveries/{event}", Access::Manager, 200, &[]),
    route("POST", "/services/{service}/webhooks/{webhook}/deliveries/{event}/replay", Access::Manager, 202, &[]),
    route("POST", "/services/{service}/webhooks/{webhook}/replay", Access::Manager, 202, REPLAY),
    route("GET", "/webhooks", Access::Admin, 200, &[]),
    // Repeated requests return 409 when the collection has ten webhooks.
    route("POST", "/webhooks", Access::Admin, 201, WEBHOOK).with_repeated_status(409),
    route("GET", "/webhooks/{webhook}", Access::Admin, 200, &[]),
    route("PATCH", "/webhooks/{webhook}", Access::Admin, 200, WEBHOOK_CHANGE),
    route("DELETE", "/webhooks/{webhook}", Access::Admin, 200, &[]).with_repeated_status(404),
    route("POST", "/webhooks/{webhook}/rotate-secret", Access::Admin, 200, &[]),
    route("POST", "/webhooks/{webhook}/test", Access::Admin, 202, &[]),
    route("GET", "/webhooks/{webhook}/deliveries", Access::Admin, 200, &[]),
    route("GET", "/webhooks/{webhook}/deliveries/{event}", Access::Admin, 200, &[]),
    route("POST", "/webhooks/{webhook}/deliveries/{event}/replay", Access::Admin, 202, &[]),
    route("POST", "/webhooks/{webhook}/replay", Access::Admin, 202, REPLAY),
    route("GET", "/audit", Access::Owner, 200, &[]),
    route("GET", "/services/{service}/protected-resource-metadata", Access::Public, 200, &[]),
    route("GET", "/.well-known/jwks.json", Access::Public, 200, &[]),
    route("GET", "/openapi.json", Access::Public, 200, &[]),
    route("GET", "/docs", Access::Public, 200, &[]),
    route("GET", "/docs/{file}", Access::Public, 200, &[]),
    route("GET", "/.well-known/oauth-authorization-server", Access::Public, 200, &[]),
    route("GET", "/signing-keys", Access::Admin, 200, &[]),
    // A requested key rotation returns 202, because the next signing key is not old enough to sign.
    route("POST", "/signing-keys/rotate", Access::Admin, 202, &[]),
    route("DELETE", "/signing-keys/{kid}", Access::Admin, 200, &[]),
    route("GET", "/health", Access::Public, 200, &[]),
    route("GET", "/status", Access::AnyFullKey, 200, &[]),
];
