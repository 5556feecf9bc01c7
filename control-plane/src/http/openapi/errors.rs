//! The error responses of endpoints, each with examples.
//!
//! `Errors<(FullKeyAuth, InvalidBody)>` in the `responses` of a handler adds the errors of authentication with an API key of
//! scope `full`, and of an invalid body. The code that builds the real errors also builds the examples.

use crate::{
    domain::{
        agent::Owner,
        quota::ExceededQuota,
        service::KeyScope,
        trust::{InvalidScore, Score},
    },
    http::{
        api::verify::TokenErrorBody,
        error::{ApiError, ErrorBody},
        openapi::schema::EXAMPLE_ID,
        request::body::BODY_LIMIT,
    },
    operations::{NotFound, OperationError, UNKNOWN_REVISION},
};
use axum::http::StatusCode;
use countersign_identity::{
    Reason::{
        self, AgentRevoked, AgentSuspended, ChallengeExpired, ChallengeInvalid, ChallengeUsed, CredentialsMalformed,
        HumanIssuerUnavailable, HumanTokenInvalid, HumanTokenMissing, RefreshExpired, RefreshInvalid, RefreshReused,
        RefreshRevoked, ServiceKeyInvalid, ServiceKeyMissing,
    },
    Refusal, ServiceId, Timestamp,
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, marker::PhantomData};
use utoipa::{
    IntoResponses, ToSchema,
    openapi::{ContentBuilder, Ref, RefOr, Response, ResponseBuilder, Schema, example::ExampleBuilder},
};

/// A group of errors, or a tuple of groups.
pub trait ErrorCases {
    /// One example of each error.
    fn examples() -> Vec<ErrorExample>;
}

/// An error in the API description.
pub struct ErrorExample {
    error: ApiError,
    /// Whether the response body also has `valid: false`, because the agent's token is invalid.
    is_token_error: bool,
}

impl From<ApiError> for ErrorExample {
    fn from(error: ApiError) -> Self {
        Self { error, is_token_error: false }
    }
}

macro_rules! tuples_of_error_cases {
    ($($($case:ident)+;)+) => {$(
        impl<$($case: ErrorCases),+> ErrorCases for ($($case,)+) {
            fn examples() -> Vec<ErrorExample> {
                [$($case::examples()),+].into_iter().flatten().collect()
            }
        }
    )+};
}

tuples_of_error_cases! { A; A B; A B C; A B C D; A B C D E; A B C D E F; A B C D E F G; }

/// The error responses of the groups `T`, and the response of internal errors.
pub struct Errors<T>(PhantomData<T>);

impl<T: ErrorCases> IntoResponses for Errors<T> {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let mut by_status = BTreeMap::<StatusCode, Vec<ErrorExample>>::new();
        for example in T::examples().into_iter().chain([ApiError::internal().into()]) {
            by_status.entry(example.error.status()).or_default().push(example);
        }
        let responses = by_status.into_iter();
        responses.map(|(status, examples)| (status.as_str().to_owned(), response(status, examples).into())).collect()
    }
}

/// The response for a single error.
pub fn error_response(error: ApiError) -> Response {
    response(error.status(), vec![error.into()])
}

fn response(status: StatusCode, examples: Vec<ErrorExample>) -> Response {
    let has_token_errors = examples.iter().any(|example| example.is_token_error);
    let schema = if has_token_errors { TokenErrorBody::name() } else { ErrorBody::name() };
    let content = ContentBuilder::new().schema(Some(RefOr::<Schema>::from(Ref::from_schema_name(schema)))).build();
    let mut response = ResponseBuilder::new().description(description(status)).content(JSON, content).build();
    for example in examples {
        add_example(&mut response, example);
    }
    response
}

const JSON: &str = "application/json";

/// Adds an error to the examples of a response. The example is named after the reason or code of the error. Errors about different
/// fields would have the same name, so all but the first get the name of a field appended, such as `VALIDATION_ERROR.score`. In all
/// other cases, a new example replaces an existing one with the same name.
pub fn add_example(response: &mut Response, example: impl Into<ErrorExample>) {
    let ErrorExample { error, is_token_error } = example.into();
    let Some(RefOr::T(content)) = response.content.get_mut(JSON) else { return };
    let body = if is_token_error { json!(TokenErrorBody::new(&error)) } else { json!(error.body()) };
    let mut name = error.example_name().to_owned();
    let fields = |body: &Value| body["error"]["details"]["fields"].as_object().cloned();
    if let Some(RefOr::T(existing)) = content.examples.get(&name)
        && existing.value.as_ref().and_then(fields) != fields(&body)
        && let Some(field) = fields(&body).and_then(|fields| fields.keys().next().cloned())
    {
        name = format!("{name}.{field}");
    }
    let example = ExampleBuilder::new().summary(error.body().error.message).value(Some(body));
    content.examples.insert(name, RefOr::from(example.build()));
}

fn description(status: StatusCode) -> &'static str {
    match status.as_u16() {
        400 => "The request is invalid: message and details say why",
        401 => "A credential is missing, invalid, expired or revoked: `details.reason` says which",
        403 => "The credential is valid but does not allow this request: `details.reason` says why",
        404 => "A resource that the request names does not exist",
        409 => "The request conflicts with the current state",
        413 => "The body is too large",
        415 => "The `Content-Type` of the body is not supported",
        429 => "A rate limit is exceeded: try again after `Retry-After` seconds",
        500 => "Internal error: the server's log has the cause under the request id",
        503 => {
            "The server cannot process the request now: try again, with the same Idempotency-Key if it must take effect only once"
        }
        _ => "The request failed",
    }
}

macro_rules! error_cases {
    ($($(#[$doc:meta])+ $name:ident = $errors:expr;)+) => {$(
        $(#[$doc])+
        pub enum $name {}

        impl ErrorCases for $name {
            fn examples() -> Vec<ErrorExample> {
                let errors: Vec<ApiError> = $errors;
                errors.into_iter().map(ErrorExample::from).collect()
            }
        }
    )+};
}

/// The errors of endpoints that require an API key.
fn key_errors() -> Vec<ApiError> {
    let reasons = [CredentialsMalformed, ServiceKeyMissing, ServiceKeyInvalid];
    reasons.into_iter().map(ApiError::from).chain([ApiError::unavailable()]).collect()
}

/// The errors of invalid tokens of human users.
fn human_token_errors() -> Vec<ApiError> {
    let expired = Refusal { reason: Reason::HumanTokenExpired, expired_at: Some(EXPIRED_AT) };
    vec![HumanTokenInvalid.into(), HumanIssuerUnavailable.into(), expired.into()]
}

/// The errors of endpoints that require a human user.
fn human_errors() -> Vec<ApiError> {
    let errors = [CredentialsMalformed, HumanTokenMissing].map(ApiError::from).into_iter();
    errors.chain(human_token_errors()).chain([ApiError::unavailable()]).collect()
}

fn scope_insufficient() -> Vec<ApiError> {
    vec![ApiError::scope_insufficient(KeyScope::Sync)]
}

fn other_service() -> Vec<ApiError> {
    vec![ApiError::other_service(ServiceId::from_bits(EXAMPLE_ID), ServiceId::from_bits(EXAMPLE_ID + 1))]
}

fn example_user() -> Owner {
    Owner { issuer: "https://login.example.org".into(), subject: "alice".into() }
}

fn conflict(message: &str) -> Vec<ApiError> {
    vec![OperationError::Conflict(message.to_owned()).into()]
}

fn quota_exceeded(quota: ExceededQuota) -> Vec<ApiError> {
    vec![OperationError::QuotaExceeded(quota).into()]
}

fn invalid_field(field: &str, message: &str) -> Vec<ApiError> {
    vec![ApiError::invalid_field(field, message)]
}

fn not_found(resource: NotFound) -> Vec<ApiError> {
    vec![ApiError::resource_not_found(resource)]
}

fn body_errors() -> Vec<ApiError> {
    let malformed =
        ApiError::malformed_body("The body must be one JSON object: EOF while parsing an object at line 1 column 1");
    vec![malformed, ApiError::too_large(BODY_LIMIT), ApiError::unsupported_media_type()]
}

/// The error for a resource URI that the service does not have.
pub const UNKNOWN_RESOURCE: &str = "must be one of the resource URIs of the service";

/// Expiry time of expired tokens in examples.
const EXPIRED_AT: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

error_cases! {
    /// Internal errors only.
    InternalOnly = vec![];
    /// No credential is required. The database may be unavailable.
    PublicAccess = vec![ApiError::unavailable()];
    /// A human user's token is optional, or required by configuration, so the errors are the same as for [`HumanAuth`].
    OptionalHumanAuth = human_errors();
    /// Requires any human user.
    HumanAuth = human_errors();
    /// Requires the owner or an administrator.
    OwnerAuth = [human_errors(), vec![ApiError::owner_required(&example_user())]].concat();
    /// Requires an administrator.
    AdminAuth = [human_errors(), vec![ApiError::admin_required(&example_user())]].concat();
    /// Requires the owner, an administrator, or the human user to whom the service is offered.
    TransferPartyAuth = [human_errors(), vec![ApiError::transfer_party_required(&example_user())]].concat();
    /// Requires the human user to whom the service is offered.
    ReceiverAuth = [human_errors(), vec![ApiError::receiver_required(&example_user())]].concat();
    /// Requires a human user who may create services.
    ServiceCreatorAuth = [human_errors(), vec![ApiError::service_creator_required(&example_user())]].concat();
    /// Requires an API key of the service, of any scope.
    ServiceKeyAuth = [key_errors(), other_service()].concat();
    /// Requires an API key with scope `full`, of any service.
    FullKeyAuth = [key_errors(), scope_insufficient()].concat();
    /// Requires an API key of the service with scope `full`, the owner or an administrator.
    ManagerAuth = [key_errors(), human_token_errors(), other_service(), scope_insufficient()].concat();
    /// The body is not a JSON object, is too large, or has a content type other than JSON. The module [`super::examples`] adds an
    /// error in a field.
    InvalidBody = body_errors();
    /// Like [`InvalidBody`], for feedback: validation errors contain the range of scores.
    InvalidFeedbackBody = {
        let (min, max) = Score::RANGE;
        let errors = body_errors().into_iter().chain(invalid_field("score", &InvalidScore.to_string()));
        errors.map(|error| error.with_validation_details([("minimum", json!(min)), ("maximum", json!(max))])).collect()
    };
    /// `limit`, `offset` or `cursor` is invalid.
    InvalidPaging = invalid_field("limit", "must be a whole number, 1 or more");
    /// The revision in the request is above the newest one.
    UnknownRevision = conflict(UNKNOWN_REVISION);
    /// `revision` or `wait` is invalid.
    InvalidRevision = invalid_field("revision", "must be a whole number, 1 or more");
    /// No such agent.
    AgentNotFound = not_found(NotFound::Agent);
    /// No such service.
    ServiceNotFound = not_found(NotFound::Service);
    /// The service is not offered to another person.
    TransferNotFound = not_found(NotFound::Transfer);
    /// No such role.
    RoleNotFound = not_found(NotFound::Role);
    /// No such API key.
    KeyNotFound = not_found(NotFound::Key);
    /// No such signing key.
    SigningKeyNotFound = not_found(NotFound::SigningKey);
    /// The scope (the service, or the whole Countersign deployment) has no such webhook.
    WebhookNotFound = not_found(NotFound::Webhook);
    /// No such delivery.
    DeliveryNotFound = not_found(NotFound::Delivery);
    /// The maximum number of webhooks is reached.
    WebhookLimit = quota_exceeded(ExceededQuota::WebhooksPerService);
    /// The maximum number of services of a person is reached.
    ServiceLimit = quota_exceeded(ExceededQuota::ServicesPerPerson(100));
    /// The maximum number of API keys of a service is reached.
    KeyLimit = quota_exceeded(ExceededQuota::KeysPerService(20));
    /// The maximum number of agents is reached.
    AgentLimit = quota_exceeded(ExceededQuota::AgentsPerPerson(1000));
    /// The maximum number of services for which an agent has live tokens is reached.
    AudienceLimit = quota_exceeded(ExceededQuota::AudiencesPerAgent);
    /// The URL of a webhook is not acceptable.
    InvalidWebhookUrl = invalid_field("url", "has a host whose name does not resolve");
    /// The control plane does not accept tokens of the issuer.
    UnknownIssuer = invalid_field("issuer", "must be an issuer that this control plane accepts: https://login.example.org");
    /// The service has no resource URI.
    ResourceUriMissing = vec![ApiError::no_resource_uri()];
    /// The service does not have the resource URI in the request.
    UnknownResource = invalid_field("resource", UNKNOWN_RESOURCE);
    /// No such file.
    FileNotFound = vec![ApiError::not_found()];
    /// The service already has a role with the name in the request.
    RoleNameTaken = conflict("the service already has a role named `billing-reader`");
    /// Another service, API key or webhook has the same name (or the same URL) and the same value of `managedBy`.
    AlreadyManaged = conflict("another service `Shop` with the same `managedBy` `platform-team` exists");
    /// The names of all permissions of the service together would be too long.
    PermissionLimit = conflict("all permission names of a service together have at most 4096 bytes");
    /// The agent has left the service.
    AgentHasLeft = vec![OperationError::AgentLeft.into()];
    /// The names of all roles of the agent together would be too long.
    RoleNameLimit = conflict("all role names of one agent together have at most 2048 bytes");
    /// The `Idempotency-Key` is invalid, or was already used with a different body.
    InvalidIdempotencyKey = [
        invalid_field("Idempotency-Key", "must be one string of 1 to 255 visible ASCII characters, optionally in quotes"),
        vec![OperationError::IdempotencyKeyReused.into()],
    ].concat();
    /// The agent is revoked.
    RevokedIsFinal = conflict("the agent is revoked, and a revocation cannot be undone: register a new agent with a new key");
    /// The signed challenge is not accepted.
    InvalidChallenge = [
        vec![OperationError::InvalidSignature.into()],
        [ChallengeInvalid, ChallengeExpired, ChallengeUsed].map(ApiError::from).into(),
    ].concat();
    /// The agent is suspended or revoked.
    InactiveAgent = [AgentSuspended, AgentRevoked].map(ApiError::from).into();
    /// The refresh token is not accepted.
    InvalidRefreshToken = [RefreshInvalid, RefreshExpired, RefreshReused, RefreshRevoked].map(ApiError::from).into();
}

/// The agent's token is missing or invalid.
pub enum InvalidAgentToken {}

impl ErrorCases for InvalidAgentToken {
    fn examples() -> Vec<ErrorExample> {
        let reasons = [
            Reason::TokenMissing,
            Reason::TokenRepeated,
            Reason::TokenMalformed,
            Reason::TokenKeyUnknown,
            Reason::TokenSignatureInvalid,
            Reason::TokenClaimsInvalid,
            Reason::TokenNotYetValid,
            Reason::TokenAudienceMismatch,
            Reason::TokenUnbound,
            Reason::TokenSuperseded,
            Reason::TokenRevoked,
            AgentSuspended,
            AgentRevoked,
        ];
        let errors = reasons.map(ApiError::from).into_iter().chain([Refusal::expired(EXPIRED_AT).into()]);
        errors.map(|error| ErrorExample { error, is_token_error: true }).collect()
    }
}
