//! The API description in OpenAPI 3.1, assembled from the declarations at the handlers.
//!
//! Handlers declare their own parameters, bodies and responses. The module `document` adds what applies to all endpoints; `errors`
//! describes the error responses, `events` the deliveries to webhooks, `examples` adds examples, `rate_limits` the rate limits.

use super::{errors, events, examples, rate_limits, schema};
use crate::http::{
    api::verify::TokenErrorBody,
    error::ErrorBody,
    middleware::conditional_get::{CacheableContent, DEFAULT_MAX_AGE},
    request::body::typed::collect_schemas,
};
use axum::{
    extract::Extension,
    http::{HeaderMap, HeaderValue},
    response::Response,
};
use serde_json::Value;
use std::sync::Arc;
use utoipa::openapi::{
    Components, ComponentsBuilder, Header, Info, InfoBuilder, License, OpenApi, OpenApiBuilder, Ref, RefOr, Schema,
    ServerBuilder, Type,
    path::Operation,
    response::Response as ResponseSpec,
    schema::{Object, ObjectBuilder},
    security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
    tag::TagBuilder,
};

/// The server URL in `docs/openapi.json`.
const PLACEHOLDER_URL: &str = "https://countersign.example";

const DESCRIPTION: &str = include_str!("description.md");

const RATELIMIT: &str = "For each limit that the request counts for: remaining requests (`r`), and seconds until there is one \
                         more (`t`). See draft-ietf-httpapi-ratelimit-headers-10.";

const RATELIMIT_POLICY: &str = "For each limit that the request counts for: maximum number of requests (`q`) in a window of \
                                this many seconds (`w`).";

/// Tags with their descriptions, in the order of the documentation.
const TAGS: [(&str, &str); 9] = [
    (
        "Authentication",
        "Registration, login, refresh and revocation of tokens of agents. No credential is required: the agent signs a challenge.",
    ),
    (
        "OAuth",
        "The same for clients that speak OAuth 2.0: tokens for a client assertion, introspection and revocation. Errors have the format of RFC 6749.",
    ),
    ("Verification", "Verification of agents' tokens by services that do not use a sidecar."),
    ("Agents", "Agents, for services and for the owners of agents."),
    ("Roles", "Roles of a service, and their assignment to agents."),
    ("Trust", "Feedback of services about agents. The trust score of an agent is computed from it."),
    ("Services", "Services and their API keys, for owners and administrators."),
    ("Webhooks", "URLs that receive events. See `webhooks` in this description for the events."),
    ("Server", "The server: health, signing keys, API description."),
];

/// The OpenAPI description without endpoints.
pub fn base() -> OpenApi {
    let tags = TAGS.map(|(name, description)| TagBuilder::new().name(name).description(Some(description)).build());
    let document = OpenApiBuilder::new().info(info()).components(Some(components())).tags(Some(tags));
    document.webhooks(Some(events::webhooks())).build()
}

/// Completes the OpenAPI description: adds a placeholder as server URL, examples, and the headers of all responses.
pub fn finish(mut document: OpenApi) -> OpenApi {
    document.servers = Some(vec![ServerBuilder::new().url(PLACEHOLDER_URL).build()]);
    let components = document.components.clone().unwrap_or_default();
    let paths = document.paths.paths.iter_mut();
    for (path, operation) in paths.flat_map(|(path, item)| operations(item).map(move |operation| (path, operation))) {
        examples::add(path, operation, &components);
        rate_limits::add(path, operation);
        for (status, response) in &mut operation.responses.responses {
            if let RefOr::T(response) = response {
                add_headers(status, response);
            }
        }
    }
    document
}

fn info() -> Info {
    let license = License::builder().name("Apache-2.0").identifier(Some("Apache-2.0")).build();
    InfoBuilder::new()
        .title("Countersign")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(DESCRIPTION))
        .license(Some(license))
        .build()
}

fn components() -> Components {
    let basic = HttpBuilder::new().scheme(HttpAuthScheme::Basic).description(Some(
        "The id of a service and one of its API keys, encoded as in RFC 6749, section 2.3.1. They can also be `client_id` and `client_secret` of the form.",
    ));
    let bearer = |format: Option<&str>, description: &str| {
        let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(description));
        let scheme = format.into_iter().fold(scheme, HttpBuilder::bearer_format);
        SecurityScheme::Http(scheme.build())
    };
    ComponentsBuilder::new()
        .schemas_from_iter(extra_schemas())
        .security_scheme("serviceKey", bearer(None, "A service API key (`svc_sk_…`). A key with scope `sync` can only verify tokens."))
        .security_scheme("humanToken", bearer(Some("JWT"), "A JWT of a human user, from an identity provider that the deployment trusts."))
        .security_scheme("serviceClient", SecurityScheme::Http(basic.build()))
        .header("RequestId", header("Id of the request, as in the server's log. A request can set it: 1 to 128 letters, digits, `-`, `_` or `.`.", text().pattern(Some("^[A-Za-z0-9._-]{1,128}$")).build()))
        .header("Challenge", header("Authentication scheme of the missing or invalid credential (RFC 6750).", text().examples(["Bearer"]).build()))
        .header("RateLimit", header(RATELIMIT, text().examples([r#""management";r=93;t=0"#]).build()))
        .header("RateLimitPolicy", header(RATELIMIT_POLICY, text().examples([r#""management";q=100;w=60"#]).build()))
        .header("RetryAfter", header("Number of seconds to wait before trying again.", ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(0.0)).build()))
        .build()
}

/// Schemas that are used only in parameters and error responses. utoipa itself collects the schemas of bodies.
fn extra_schemas() -> Vec<(String, RefOr<Schema>)> {
    let mut schemas = events::schemas().collect::<Vec<_>>();
    collect_schemas::<ErrorBody>(&mut schemas);
    collect_schemas::<TokenErrorBody>(&mut schemas);
    collect_schemas::<schema::BearerAccessTokenSchema>(&mut schemas);
    collect_schemas::<schema::AgentIdSchema>(&mut schemas);
    collect_schemas::<schema::ServiceIdSchema>(&mut schemas);
    collect_schemas::<schema::RoleIdSchema>(&mut schemas);
    collect_schemas::<schema::ApiKeyIdSchema>(&mut schemas);
    collect_schemas::<schema::JwkSchema>(&mut schemas);
    collect_schemas::<schema::AnyTokenSchema>(&mut schemas);
    collect_schemas::<schema::TextSchema>(&mut schemas);
    collect_schemas::<schema::PermissionSchema>(&mut schemas);
    collect_schemas::<schema::EventKindSchema>(&mut schemas);
    collect_schemas::<schema::WebhookIdSchema>(&mut schemas);
    collect_schemas::<schema::EventIdSchema>(&mut schemas);
    schemas
}

fn text() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String)
}

fn header(description: &str, schema: Object) -> Header {
    Header::builder().description(Some(description)).schema(Some(schema)).build()
}

/// Adds the headers that responses with a given status have.
fn add_headers(status: &str, response: &mut ResponseSpec) {
    let mut headers = vec![("X-Request-Id", "RequestId")];
    match status {
        "401" => headers.push(("WWW-Authenticate", "Challenge")),
        "429" | "503" => headers.push(("Retry-After", "RetryAfter")),
        _ => {}
    }
    for (name, component) in headers {
        add_header(response, name, component);
    }
}

/// Adds a header that is described in the components.
pub fn add_header(response: &mut ResponseSpec, name: &str, component: &str) {
    let reference = Ref::new(format!("#/components/headers/{component}"));
    response.headers.insert(name.to_owned(), RefOr::Ref(reference));
}

fn operations(path: &mut utoipa::openapi::PathItem) -> impl Iterator<Item = &mut Operation> {
    [&mut path.get, &mut path.put, &mut path.post, &mut path.patch, &mut path.delete].into_iter().flatten()
}

/// The serialized OpenAPI description of this server.
pub struct PublishedDocument(CacheableContent);

impl PublishedDocument {
    /// `description` is the document from [`finish`] as JSON text, and `url` the public URL of the server.
    pub fn new(description: &str, url: &str) -> Self {
        let server = |url: &str| format!("\"url\": {}", Value::from(url));
        let json = description.replacen(&server(PLACEHOLDER_URL), &server(url), 1);
        Self(CacheableContent::new(HeaderValue::from_static("application/json"), json.into()))
    }
}

/// The OpenAPI description as JSON text.
pub fn to_json(document: &OpenApi) -> String {
    // Serialization cannot fail: all map keys are strings.
    serde_json::to_string_pretty(document).unwrap_or_default() + "\n"
}

/// Read the API description
///
/// OpenAPI 3.1 in JSON. `/docs` shows the description in a browser.
#[utoipa::path(
    get, path = "/openapi.json", operation_id = "readDescription", tag = "Server", security(()),
    responses(
        (
            status = 200, description = "The API description", body = schema::AnyObjectSchema,
            headers(("ETag", description = "For `If-None-Match`")),
        ),
        (status = 304, description = "Unchanged since the `ETag` in `If-None-Match`"),
        errors::Errors<(errors::InternalOnly,)>,
    )
)]
pub async fn openapi(Extension(published): Extension<Arc<PublishedDocument>>, headers: HeaderMap) -> Response {
    published.0.response(&headers, DEFAULT_MAX_AGE)
}
