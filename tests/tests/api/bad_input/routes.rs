//! Every route there is, as data: who may use it, and what its body must be. A new route is one entry here.

use Shape::{Array, Boolean, Line, Number, Object, Prose};

/// Who may use a route; what everybody else is told stands in `credentials`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// Everybody; a credential is not looked at.
    Open,
    /// Everybody, here; a credential must be a person's.
    Registrant,
    /// The service's keys, of either scope.
    Verifier,
    /// Any service's keys of full scope.
    AnyFullKey,
    /// The service's keys of full scope, its owner, administrators.
    Manager,
    /// The owner and administrators.
    Owner,
    /// Any person.
    Person,
    /// Administrators.
    Admin,
}

/// A route.
#[derive(Debug)]
pub struct Route {
    pub method: &'static str,
    /// As in the router; the names in braces are filled in by the stage.
    pub path: &'static str,
    pub door: Door,
    /// What a good request is answered with.
    pub good: u16,
    /// What it is answered with once more, if that is something else: what it names was used up.
    pub again: Option<u16>,
    /// What the body must have; nothing for a route that does not look at a body.
    pub fields: &'static [Field],
}

/// What a field holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Text on one line, at least a character.
    Line,
    /// Text, maybe none, maybe of several lines.
    Prose,
    Boolean,
    /// A number from 0 to 100.
    Number,
    Object,
    /// An array of strings.
    Array,
}

/// A field of a body.
#[derive(Debug)]
pub struct Field {
    pub name: &'static str,
    pub shape: Shape,
    /// A good value in JSON, in which `<name>` is filled in by the stage.
    pub good: &'static str,
    pub required: bool,
    /// What a text that means nothing is answered with.
    pub nonsense: (u16, &'static str),
}

const fn field(name: &'static str, shape: Shape, good: &'static str) -> Field {
    Field { name, shape, good, required: true, nonsense: (400, "VALIDATION_ERROR") }
}

impl Field {
    const fn or_nothing(self) -> Self {
        Self { required: false, ..self }
    }

    const fn else_says(self, status: u16, code: &'static str) -> Self {
        Self { nonsense: (status, code), ..self }
    }
}

const fn service_id() -> Field {
    field("serviceId", Line, r#""<service>""#).else_says(404, "SERVICE_NOT_FOUND").or_nothing()
}

const fn route(method: &'static str, path: &'static str, door: Door, good: u16, fields: &'static [Field]) -> Route {
    Route { method, path, door, good, again: None, fields }
}

impl Route {
    const fn then(self, again: u16) -> Self {
        Self { again: Some(again), ..self }
    }

    /// Whether the answer is a good one.
    pub fn admits(&self, status: u16) -> bool {
        status == self.good || Some(status) == self.again
    }

    /// The largest body, in bytes.
    pub fn limit(&self) -> usize {
        let kibibytes = if self.path.starts_with("/auth/") && self.path != "/auth/revoke" { 16 } else { 64 };
        kibibytes * 1024
    }
}

pub const ROUTES: &[Route] = &[
    route(
        "POST",
        "/auth/register",
        Door::Registrant,
        201,
        &[
            field("email", Line, r#""<number>@example.org""#),
            field("name", Line, r#""Agent""#),
            field("publicKey", Prose, r#""<pem>""#),
            field("metadata", Object, r#"{"team":"blue"}"#).or_nothing(),
        ],
    ),
    route(
        "POST",
        "/auth/challenge",
        Door::Open,
        200,
        &[field("agentId", Line, r#""<agent>""#).else_says(404, "AGENT_NOT_FOUND"), service_id()],
    ),
    route(
        "POST",
        "/auth/authenticate",
        Door::Open,
        200,
        &[
            field("challengeId", Line, r#""<challenge>""#).else_says(401, "AUTHENTICATION_FAILED"),
            field("signature", Line, r#""<signature>""#).else_says(400, "INVALID_SIGNATURE"),
            service_id(),
        ],
    ),
    route(
        "POST",
        "/auth/refresh",
        Door::Open,
        200,
        &[field("refreshToken", Line, r#""<refresh>""#).else_says(401, "AUTHENTICATION_FAILED"), service_id()],
    ),
    route(
        "POST",
        "/auth/revoke",
        Door::Open,
        200,
        // What is no token of ours has nothing to be revoked (RFC 7009, 2.2). A form may say the same.
        &[
            field("token", Line, r#""rf_of_nobody""#).else_says(200, ""),
            field("token_type_hint", Line, r#""refresh_token""#).or_nothing().else_says(200, ""),
        ],
    ),
    route("GET", "/services", Door::Person, 200, &[]),
    route(
        "POST",
        "/services",
        Door::Person,
        201,
        &[field("name", Line, r#""Service""#), field("acceptsUnboundTokens", Boolean, "true").or_nothing()],
    ),
    route("GET", "/services/{service}", Door::Owner, 200, &[]),
    route(
        "PATCH",
        "/services/{service}",
        Door::Owner,
        200,
        &[
            field("name", Line, r#""Service""#).or_nothing(),
            field("acceptsUnboundTokens", Boolean, "true").or_nothing(),
        ],
    ),
    route(
        "POST",
        "/services/{service}/keys",
        Door::Owner,
        201,
        &[field("name", Line, r#""Key""#), field("scope", Line, r#""sync""#)],
    ),
    route("GET", "/services/{service}/keys", Door::Owner, 200, &[]),
    route("DELETE", "/services/{service}/keys/{key}", Door::Owner, 200, &[]),
    route("GET", "/services/{service}/verify", Door::Verifier, 200, &[]),
    route(
        "POST",
        "/services/{service}/roles",
        Door::Manager,
        201,
        &[
            field("name", Line, r#""Role <number>""#),
            field("permissions", Array, r#"["read"]"#),
            field("description", Prose, r#""Reads""#).or_nothing(),
        ],
    ),
    route("GET", "/services/{service}/roles", Door::Manager, 200, &[]),
    route(
        "PATCH",
        "/services/{service}/roles/{role}",
        Door::Manager,
        200,
        &[
            field("permissions", Array, r#"["read"]"#).or_nothing(),
            field("description", Prose, r#""Reads""#).or_nothing(),
        ],
    ),
    route("GET", "/services/{service}/agents", Door::Manager, 200, &[]),
    route("DELETE", "/services/{service}/roles/{role}", Door::Manager, 200, &[]).then(404),
    route("GET", "/services/{service}/agents/{agent}", Door::Manager, 200, &[]),
    route(
        "POST",
        "/services/{service}/agents/{agent}/roles",
        Door::Manager,
        200,
        &[
            field("roleId", Line, r#""<role>""#).else_says(404, "ROLE_NOT_FOUND"),
            field("expiresAt", Line, r#""2099-01-01T00:00:00Z""#).or_nothing(),
        ],
    ),
    route("DELETE", "/services/{service}/agents/{agent}/roles/{role}", Door::Manager, 200, &[]),
    route("PUT", "/agents/{agent}/status", Door::Owner, 200, &[field("status", Line, r#""active""#)]),
    route(
        "POST",
        "/trust/feedback",
        Door::AnyFullKey,
        200,
        &[
            field("agentId", Line, r#""<agent>""#).else_says(404, "AGENT_NOT_FOUND"),
            field("score", Number, "87.5"),
            field("reason", Prose, r#""As agreed""#).or_nothing(),
            field("metadata", Object, r#"{"order":7}"#).or_nothing(),
        ],
    ),
    route("GET", "/trust/agents/{agent}/history", Door::AnyFullKey, 200, &[]),
    route("GET", "/services/{service}/webhooks", Door::Manager, 200, &[]),
    // At most ten.
    route(
        "POST",
        "/services/{service}/webhooks",
        Door::Manager,
        201,
        &[
            field("url", Line, r#""<receiver>""#),
            field("events", Array, r#"["agent.role_assigned"]"#).or_nothing(),
            field("description", Prose, r#""Why""#).or_nothing(),
        ],
    )
    .then(409),
    route("GET", "/services/{service}/webhooks/{webhook}", Door::Manager, 200, &[]),
    route(
        "PATCH",
        "/services/{service}/webhooks/{webhook}",
        Door::Manager,
        200,
        &[
            field("url", Line, r#""<receiver>""#).or_nothing(),
            field("events", Array, r#"["agent.role_assigned"]"#).or_nothing(),
            field("description", Prose, r#""Why""#).or_nothing(),
            field("status", Line, r#""active""#).or_nothing(),
        ],
    ),
    route("DELETE", "/services/{service}/webhooks/{webhook}", Door::Manager, 200, &[]).then(404),
    route("POST", "/services/{service}/webhooks/{webhook}/rotate-secret", Door::Manager, 200, &[]),
    route("POST", "/services/{service}/webhooks/{webhook}/test", Door::Manager, 202, &[]),
    route("GET", "/services/{service}/webhooks/{webhook}/deliveries", Door::Manager, 200, &[]),
    route("GET", "/services/{service}/webhooks/{webhook}/deliveries/{event}", Door::Manager, 200, &[]),
    route("POST", "/services/{service}/webhooks/{webhook}/deliveries/{event}/replay", Door::Manager, 202, &[]),
    route(
        "POST",
        "/services/{service}/webhooks/{webhook}/replay",
        Door::Manager,
        202,
        &[field("since", Line, r#""2020-01-01T00:00:00Z""#), field("status", Line, r#""delivered""#).or_nothing()],
    ),
    route("GET", "/webhooks", Door::Admin, 200, &[]),
    // At most ten.
    route(
        "POST",
        "/webhooks",
        Door::Admin,
        201,
        &[
            field("url", Line, r#""<receiver>""#),
            field("events", Array, r#"["agent.role_assigned"]"#).or_nothing(),
            field("description", Prose, r#""Why""#).or_nothing(),
        ],
    )
    .then(409),
    route("GET", "/webhooks/{webhook}", Door::Admin, 200, &[]),
    route(
        "PATCH",
        "/webhooks/{webhook}",
        Door::Admin,
        200,
        &[
            field("url", Line, r#""<receiver>""#).or_nothing(),
            field("events", Array, r#"["agent.role_assigned"]"#).or_nothing(),
            field("description", Prose, r#""Why""#).or_nothing(),
            field("status", Line, r#""active""#).or_nothing(),
        ],
    ),
    route("DELETE", "/webhooks/{webhook}", Door::Admin, 200, &[]).then(404),
    route("POST", "/webhooks/{webhook}/rotate-secret", Door::Admin, 200, &[]),
    route("POST", "/webhooks/{webhook}/test", Door::Admin, 202, &[]),
    route("GET", "/webhooks/{webhook}/deliveries", Door::Admin, 200, &[]),
    route("GET", "/webhooks/{webhook}/deliveries/{event}", Door::Admin, 200, &[]),
    route("POST", "/webhooks/{webhook}/deliveries/{event}/replay", Door::Admin, 202, &[]),
    route(
        "POST",
        "/webhooks/{webhook}/replay",
        Door::Admin,
        202,
        &[field("since", Line, r#""2020-01-01T00:00:00Z""#), field("status", Line, r#""delivered""#).or_nothing()],
    ),
    route("GET", "/audit", Door::Owner, 200, &[]),
    route("GET", "/.well-known/jwks.json", Door::Open, 200, &[]),
    route("GET", "/openapi.json", Door::Open, 200, &[]),
    route("GET", "/docs", Door::Open, 200, &[]),
    route("GET", "/docs/{file}", Door::Open, 200, &[]),
    route("GET", "/.well-known/oauth-authorization-server", Door::Open, 200, &[]),
    route("GET", "/signing-keys", Door::Admin, 200, &[]),
    // The next key is too young to sign.
    route("POST", "/signing-keys/rotate", Door::Admin, 202, &[]),
    route("DELETE", "/signing-keys/{kid}", Door::Admin, 200, &[]),
    route("GET", "/health", Door::Open, 200, &[]),
    route("GET", "/status", Door::AnyFullKey, 200, &[]),
];
