//! The description of the API in OpenAPI 3.1, made of what stands at the handlers.
//!
//! Neighbours: each handler says what it takes and answers; `document::errors` turns the ways to fail into answers with
//! examples; `docs` shows the description to people. The rule of the room: what is so for every endpoint is
//! said here once, what is so for one stands at its handler.

use super::{errors, events, examples, limited, schema};
use crate::http::{api::verify::RefusedToken, error::ErrorBody, middleware::caching};
use axum::{
    body::Bytes,
    extract::Extension,
    http::{HeaderMap, HeaderValue},
    response::Response,
};
use std::sync::Arc;
use utoipa::{
    ToSchema,
    openapi::{
        Components, ComponentsBuilder, Header, Info, InfoBuilder, License, OpenApi, OpenApiBuilder, Ref, RefOr, Schema,
        ServerBuilder, Type,
        path::Operation,
        response::Response as Answer,
        schema::{Object, ObjectBuilder},
        security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme},
        tag::TagBuilder,
    },
};

/// What stands in the copy that is kept in the repository.
pub const ANYWHERE: &str = "https://countersign.example";

const ABOUT: &str = include_str!("about.md");

const LEFT: &str = "For each limit that the request counted for, how many requests are left (`r`), and after how many \
                    seconds there is one more (`t`): draft-ietf-httpapi-ratelimit-headers-10.";

const POLICY: &str = "How many requests (`q`) may be made in how many seconds (`w`).";

/// In the order in which they are read.
const TAGS: [(&str, &str); 8] = [
    ("Authentication", "How an agent comes by its tokens. No credential is sent: the signature is the proof."),
    ("Verification", "What a service asks about an agent's token when no sidecar asks for it."),
    ("Agents", "Agents as services and their owners see them."),
    ("Roles", "Roles of a service, and who holds them."),
    ("Trust", "What services say of agents, and what it amounts to."),
    ("Services", "Services and their API keys, for the people who own them."),
    ("Webhooks", "Where events are told. What is told stands in the section `webhooks` of this description."),
    ("Server", "The server itself: its health, its keys, this description."),
];

/// The description as it is before any endpoint has been added.
pub fn blank() -> OpenApi {
    let tags = TAGS.map(|(name, about)| TagBuilder::new().name(name).description(Some(about)).build());
    let document = OpenApiBuilder::new().info(info()).components(Some(components())).tags(Some(tags));
    document.webhooks(Some(events::webhooks())).build()
}

/// The description as it is served: where this server is reached, and what every answer has.
pub fn finish(mut document: OpenApi, url: &str) -> OpenApi {
    document.servers = Some(vec![ServerBuilder::new().url(url).build()]);
    let words = document.components.clone().unwrap_or_default();
    let paths = document.paths.paths.iter_mut();
    for (path, operation) in paths.flat_map(|(path, item)| operations(item).map(move |operation| (path, operation))) {
        limited::add(path, operation);
        examples::add(operation, &words);
        for (status, answer) in &mut operation.responses.responses {
            if let RefOr::T(answer) = answer {
                add_headers(status, answer);
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
        .description(Some(ABOUT))
        .license(Some(license))
        .build()
}

fn components() -> Components {
    let bearer = |format: Option<&str>, about: &str| {
        let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(about));
        let scheme = format.into_iter().fold(scheme, HttpBuilder::bearer_format);
        SecurityScheme::Http(scheme.build())
    };
    let token = ApiKeyValue::with_description(
        "X-Agent-Token",
        "The access token of the agent that is asked about, as `Bearer <token>`. It goes beside the service's API key.",
    );
    ComponentsBuilder::new()
        .schemas_from_iter(words())
        .security_scheme("serviceKey", bearer(None, "A service API key (`svc_sk_…`). Keys of scope `sync` can verify tokens, nothing else."))
        .security_scheme("humanToken", bearer(Some("JWT"), "A JWT that speaks for a person."))
        .security_scheme("agentToken", SecurityScheme::ApiKey(ApiKey::Header(token)))
        .header("RequestId", header("The id of this request, also in the log of the server; the one that was sent, if it is 1 to 128 letters, digits, `-`, `_` or `.`.", text().pattern(Some("^[A-Za-z0-9._-]{1,128}$")).build()))
        .header("Challenge", header("Which kind of credential is missing or wrong (RFC 6750).", text().examples(["Bearer"]).build()))
        .header("RateLimit", header(LEFT, text().examples([r#""management";r=93;t=0"#]).build()))
        .header("RateLimitPolicy", header(POLICY, text().examples([r#""management";q=100;w=60"#]).build()))
        .header("RetryAfter", header("After how many seconds it is worth trying again.", ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(0.0)).build()))
        .build()
}

/// Words that no handler brings along, since it names them only in parameters, or in errors.
fn words() -> Vec<(String, RefOr<Schema>)> {
    let mut words = Vec::new();
    add_word::<ErrorBody>(&mut words);
    add_word::<RefusedToken>(&mut words);
    add_word::<schema::AgentId>(&mut words);
    add_word::<schema::ServiceId>(&mut words);
    add_word::<schema::RoleId>(&mut words);
    add_word::<schema::ApiKeyId>(&mut words);
    add_word::<schema::PublishedKey>(&mut words);
    add_word::<schema::AnyToken>(&mut words);
    add_word::<schema::Text>(&mut words);
    add_word::<schema::Permission>(&mut words);
    add_word::<schema::WebhookId>(&mut words);
    add_word::<schema::EventId>(&mut words);
    words.extend(events::schemas());
    words
}

fn add_word<T: ToSchema>(words: &mut Vec<(String, RefOr<Schema>)>) {
    words.push((T::name().into_owned(), T::schema()));
    T::schemas(words);
}

fn text() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String)
}

fn header(about: &str, form: Object) -> Header {
    Header::builder().description(Some(about)).schema(Some(form)).build()
}

/// Headers that a status brings along.
fn add_headers(status: &str, answer: &mut Answer) {
    let mut named = vec![("X-Request-Id", "RequestId")];
    match status {
        "401" => named.push(("WWW-Authenticate", "Challenge")),
        "429" | "503" => named.push(("Retry-After", "RetryAfter")),
        _ => {}
    }
    for (name, component) in named {
        let link = Ref::new(format!("#/components/headers/{component}"));
        answer.headers.insert(name.to_owned(), RefOr::Ref(link));
    }
}

/// The operations of a path.
pub fn operations(path: &mut utoipa::openapi::PathItem) -> impl Iterator<Item = &mut Operation> {
    [&mut path.get, &mut path.put, &mut path.post, &mut path.patch, &mut path.delete].into_iter().flatten()
}

/// The description of this server, as it is sent.
pub struct Published(Bytes);

impl Published {
    /// Writes it down.
    pub fn new(document: OpenApi, url: &str) -> Self {
        Self(text_of(&finish(document, url)).into())
    }
}

/// The description as text.
pub fn text_of(document: &OpenApi) -> String {
    // A structure of texts and numbers can always be written.
    serde_json::to_string_pretty(document).unwrap_or_default() + "\n"
}

/// This description
///
/// In OpenAPI 3.1. `/docs` shows it to people.
#[utoipa::path(
    get, path = "/openapi.json", operation_id = "readDescription", tag = "Server", security(()),
    responses(
        (
            status = 200, description = "The description", body = schema::AnyObject,
            headers(("ETag", description = "For `If-None-Match`")),
        ),
        (status = 304, description = "Not changed since the `ETag` in `If-None-Match`"),
        errors::Errors<(errors::Nothing,)>,
    )
)]
pub async fn openapi(Extension(published): Extension<Arc<Published>>, headers: HeaderMap) -> Response {
    caching::answer(&headers, HeaderValue::from_static("application/json"), published.0.clone(), caching::DEFAULT_LIMIT)
}
