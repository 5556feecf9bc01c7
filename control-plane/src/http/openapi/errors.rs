//! The ways in which an endpoint can fail, as answers with an example of each.
//!
//! `Errors<(FullKey, Body)>` in the `responses` of a handler stands for all that can go wrong with a key of full scope
//! and with a body. The examples are made by the same code as the errors themselves.

use crate::{
    http::{
        api::verify::RefusedToken,
        error::{ApiError, ErrorBody, Problem},
    },
    operations::{NotFound, OperationError},
};
use axum::http::StatusCode;
use countersign_identity::{Reason, Refusal, Timestamp};
use serde_json::json;
use std::{collections::BTreeMap, marker::PhantomData};
use utoipa::{
    IntoResponses, ToSchema,
    openapi::{ContentBuilder, Ref, RefOr, Response, ResponseBuilder, example::ExampleBuilder},
};

/// Ways to fail.
pub trait Cases {
    /// One error of each way.
    fn cases() -> Vec<ApiError>;

    /// Whether the answer to such an error also says that an agent's token is not valid.
    const OF_TOKENS: bool = false;
}

/// All of these ways to fail, and the faults of the server itself.
pub struct Errors<T>(PhantomData<T>);

impl<T: Answers> IntoResponses for Errors<T> {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let mut by_status = BTreeMap::<StatusCode, Vec<(ApiError, bool)>>::new();
        let faults = vec![(ApiError::internal(), false)];
        for (error, of_token) in T::answers().into_iter().chain(faults) {
            by_status.entry(error.case().0).or_default().push((error, of_token));
        }
        by_status
            .into_iter()
            .map(|(status, errors)| (status.as_str().to_owned(), answer(status, errors).into()))
            .collect()
    }
}

/// Errors, and whether an agent's token is what they are about.
pub trait Answers {
    /// All of them.
    fn answers() -> Vec<(ApiError, bool)>;
}

impl<T: Cases> Answers for T {
    fn answers() -> Vec<(ApiError, bool)> {
        T::cases().into_iter().map(|error| (error, T::OF_TOKENS)).collect()
    }
}

macro_rules! together {
    ($($($part:ident)+;)+) => {$(
        impl<$($part: Cases),+> Answers for ($($part,)+) {
            fn answers() -> Vec<(ApiError, bool)> {
                [$($part::answers()),+].concat_all()
            }
        }
    )+};
}

/// Lists put together.
trait Concat<T> {
    fn concat_all(self) -> Vec<T>;
}

impl<T, const N: usize> Concat<T> for [Vec<T>; N] {
    fn concat_all(self) -> Vec<T> {
        self.into_iter().flatten().collect()
    }
}

together! { A; A B; A B C; A B C D; A B C D E; A B C D E F; }

/// The answer to this one error.
pub fn answer_with(error: ApiError) -> Response {
    answer(error.case().0, vec![(error, false)])
}

fn answer(status: StatusCode, errors: Vec<(ApiError, bool)>) -> Response {
    let of_token = errors.iter().any(|(_, of_token)| *of_token);
    let schema = if of_token { RefusedToken::name() } else { ErrorBody::name() };
    let examples = errors.into_iter().map(|(error, of_token)| {
        let body = if of_token { json!(RefusedToken::of(&error)) } else { json!(error.body()) };
        let example = ExampleBuilder::new().summary(error.body().message()).value(Some(body));
        (error.case().1.to_owned(), RefOr::from(example.build()))
    });
    let content = ContentBuilder::new()
        .schema(Some(RefOr::<utoipa::openapi::Schema>::from(Ref::from_schema_name(schema))))
        .examples_from_iter(examples)
        .build();
    ResponseBuilder::new().description(meaning(status)).content("application/json", content).build()
}

fn meaning(status: StatusCode) -> &'static str {
    match status.as_u16() {
        400 => "The request is wrong: its message and details say how",
        401 => "A credential is missing, wrong, expired or dead: `details.reason` says which",
        403 => "The credential is good, and does not suffice: `details.reason` says why",
        404 => "What the request names does not exist",
        409 => "The request contradicts what is there",
        413 => "The body is too large",
        415 => "The body is not what its `Content-Type` must be",
        429 => "Too many requests: `Retry-After` says when to come back",
        500 => "A fault of the server; the request id leads to its log",
        503 => {
            "The server cannot answer right now: try again, with the same Idempotency-Key where it must happen only once"
        }
        _ => "The request failed",
    }
}

macro_rules! cases {
    ($($(#[$doc:meta])+ $name:ident = $errors:expr;)+) => {$(
        $(#[$doc])+
        pub enum $name {}

        impl Cases for $name {
            fn cases() -> Vec<ApiError> {
                $errors
            }
        }
    )+};
}

/// Refusals for these reasons, and what can befall whoever is let in or not.
fn refused(reasons: &[Reason]) -> Vec<ApiError> {
    reasons.iter().map(|reason| (*reason).into()).chain(Anybody::cases()).collect()
}

fn conflict(message: &str) -> Vec<ApiError> {
    vec![OperationError::Conflict(message.to_owned()).into()]
}

fn wrong(field: &str, message: &str) -> Vec<ApiError> {
    vec![ApiError::invalid(&[Problem { field: field.to_owned(), message: message.to_owned() }])]
}

use Reason::{
    AdminRequired, AgentRevoked, AgentSuspended, ChallengeExpired, ChallengeInvalid, ChallengeUsed,
    CredentialsMalformed, HumanTokenInvalid, HumanTokenMissing, NotYours, RefreshExpired, RefreshInvalid,
    RefreshReused, RefreshRevoked, ScopeInsufficient, ServiceKeyInvalid, ServiceKeyMissing,
};

cases! {
    /// Nothing but the faults of the server.
    Nothing = vec![];
    /// Where everybody is let in.
    Anybody = vec![ApiError::unavailable()];
    /// Where a person may say who they are, and sometimes must.
    Registrant = refused(&[CredentialsMalformed, HumanTokenMissing, HumanTokenInvalid]);
    /// Where any person is let in.
    Person = refused(&[CredentialsMalformed, HumanTokenMissing, HumanTokenInvalid]);
    /// Where the owner is let in, and administrators.
    Owner = refused(&[CredentialsMalformed, HumanTokenMissing, HumanTokenInvalid, NotYours]);
    /// Where administrators are let in.
    Admin = refused(&[CredentialsMalformed, HumanTokenMissing, HumanTokenInvalid, AdminRequired]);
    /// Where any key of the service is let in.
    Key = refused(&[CredentialsMalformed, ServiceKeyMissing, ServiceKeyInvalid, NotYours]);
    /// Where a key of full scope is let in, of the service if the path names one.
    FullKey = refused(&[CredentialsMalformed, ServiceKeyMissing, ServiceKeyInvalid, ScopeInsufficient]);
    /// The same, where the path names the service.
    FullKeyOfService = refused(&[CredentialsMalformed, ServiceKeyMissing, ServiceKeyInvalid, NotYours, ScopeInsufficient]);
    /// Where a key of full scope is let in, the owner, and administrators.
    Manager = refused(&[CredentialsMalformed, ServiceKeyMissing, ServiceKeyInvalid, HumanTokenInvalid, NotYours, ScopeInsufficient]);
    /// What can be wrong with a body.
    Body = [
        wrong("name", "is required"),
        vec![ApiError::too_large(64 * 1024), ApiError::unsupported_media_type()],
    ].concat_all();
    /// What can be wrong with `limit` and `offset`.
    Paging = wrong("limit", "must be a whole number, 1 or more");
    /// No such agent.
    NoAgent = vec![ApiError::resource_not_found(NotFound::Agent)];
    /// No such service.
    NoService = vec![ApiError::resource_not_found(NotFound::Service)];
    /// No such role.
    NoRole = vec![ApiError::resource_not_found(NotFound::Role)];
    /// No such API key.
    NoKey = vec![ApiError::resource_not_found(NotFound::Key)];
    /// No such signing key.
    NoSigningKey = vec![ApiError::resource_not_found(NotFound::SigningKey)];
    /// No such webhook at this place.
    NoWebhook = vec![ApiError::resource_not_found(NotFound::Webhook)];
    /// Nothing was delivered under this id.
    NoDelivery = vec![ApiError::resource_not_found(NotFound::Delivery)];
    /// There are as many webhooks as there can be.
    TooManyWebhooks = conflict("the maximum of 10 webhooks is reached: delete or change one");
    /// What can be wrong with the URL of a webhook.
    WrongUrl = wrong("url", "has a host whose name does not resolve");
    /// No such file.
    NoFile = vec![ApiError::not_found()];
    /// A role cannot be as it is asked for.
    RoleConflict = conflict("the service has a role named `billing-reader` already");
    /// An agent cannot hold one more role.
    TooManyRoles = conflict("all role names of one agent together have at most 2048 bytes");
    /// What can be wrong with an `Idempotency-Key`.
    Repeated = [wrong("Idempotency-Key", "must be one string"), vec![OperationError::IdempotencyKeyReused.into()]].concat_all();
    /// The agent was revoked for good.
    Revoked = conflict("the agent is revoked, which is for good: register again, with a new key");
    /// What can be wrong with the answer to a challenge.
    Challenge = [
        vec![OperationError::InvalidSignature.into()],
        [ChallengeInvalid, ChallengeExpired, ChallengeUsed].map(ApiError::from).into(),
    ].concat_all();
    /// The agent is suspended or revoked.
    Inactive = [AgentSuspended, AgentRevoked].map(ApiError::from).into();
    /// What can be wrong with a refresh token.
    Refresh = [RefreshInvalid, RefreshExpired, RefreshReused, RefreshRevoked].map(ApiError::from).into();
}

/// What can be wrong with the agent's token that is asked about.
pub enum AgentToken {}

impl Cases for AgentToken {
    fn cases() -> Vec<ApiError> {
        let expired = Refusal::expired(Timestamp::from_micros(1_800_000_000_000_000));
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
        reasons.into_iter().map(ApiError::from).chain([expired.into()]).collect()
    }

    const OF_TOKENS: bool = true;
}
