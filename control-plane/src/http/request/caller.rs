//! Authenticates the caller of a request by its bearer credential, and checks what the caller may access.

use super::{client_address::ClientAddress, ids::parse_id};
use crate::{
    domain::{
        agent::Owner,
        audit::{Actor, Initiator, RequestOrigin},
        caller::{Caller, Human},
        service::{Service, ServiceKey},
    },
    http::{
        error::ApiError,
        middleware::{limits::RequestLimiter, telemetry::RequestId},
        state::AppState,
    },
    operations::{
        Context, CurrentState, authenticate_service, require_manager, require_owner, require_service_creator,
    },
};
use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, header, request::Parts},
};
use countersign_identity::{Reason, ServiceId};
use secrecy::{ExposeSecret, SecretString};
use std::sync::Arc;

/// Prefix of service API keys. Tokens of human users are JWTs and never start with `svc_`.
const SERVICE_KEY_PREFIX: &str = "svc_";

/// A request that needs a caller: the state of the API, and the unverified bearer credential. The methods of `Call` verify the
/// credential and count the request.
pub struct Call {
    pub state: AppState,
    bearer: Option<SecretString>,
    origin: RequestOrigin,
    limiter: RequestLimiter,
}

impl FromRequestParts<AppState> for Call {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let call = Self::without_bearer(parts, state)?;
        match bearer_credential(&parts.headers) {
            Ok(bearer) => Ok(Self { bearer, ..call }),
            Err(reason) => Err(call.count_failure(reason).await),
        }
    }
}

/// Client address and request id, for the audit log.
fn audit_origin(parts: &Parts) -> RequestOrigin {
    let address = parts.extensions.get::<ClientAddress>().map(|client| client.ip);
    RequestOrigin { address, request_id: parts.extensions.get::<RequestId>().map(|id| id.0.clone()) }
}

/// The bearer credential in `Authorization`; `None` if the header is absent. Fails if the header is repeated, or contains anything
/// but one bearer credential.
fn bearer_credential(headers: &HeaderMap) -> Result<Option<SecretString>, Reason> {
    let mut values = headers.get_all(header::AUTHORIZATION).into_iter();
    let Some(value) = values.next() else { return Ok(None) };
    let text = value.to_str().map_err(|_| Reason::CredentialsMalformed)?;
    let (scheme, credential) = text.split_once(' ').ok_or(Reason::CredentialsMalformed)?;
    let credential = credential.trim_matches(' ');
    let is_single =
        values.next().is_none() && !credential.is_empty() && credential.bytes().all(|byte| byte.is_ascii_graphic());
    if is_single && scheme.eq_ignore_ascii_case("bearer") && !credential.contains(',') {
        Ok(Some(credential.to_owned().into()))
    } else {
        Err(Reason::CredentialsMalformed)
    }
}

impl Call {
    /// A call without a credential. [`Self::with_bearer`] adds one.
    pub fn without_bearer(parts: &Parts, state: &AppState) -> Result<Self, ApiError> {
        let limiter = RequestLimiter::from_parts(parts)?;
        Ok(Self { state: state.clone(), bearer: None, origin: audit_origin(parts), limiter })
    }

    /// The call with this credential.
    pub fn with_bearer(self, bearer: SecretString) -> Self {
        Self { bearer: Some(bearer), ..self }
    }

    pub fn context(&self) -> &Context {
        &self.state.context
    }

    /// Counts a failed authentication. Returns its error, or the error of the rate limit if there were too many failures.
    pub async fn count_failure(&self, error: impl Into<ApiError>) -> ApiError {
        self.limiter.count_failure(&self.state, error.into()).await
    }

    /// Requires an API key of `service`, of any scope. Returns the state of the database, read after the request arrived.
    pub async fn require_service_key(&self, service: ServiceId) -> Result<Arc<CurrentState>, ApiError> {
        let (key, current) = self.service_key().await?;
        let caller = Caller::Service(key);
        caller.require_key_of(service).map_err(|reason| access_error(reason, &caller, service))?;
        Ok(current)
    }

    /// Like [`Self::require_service_key`], for an API key of any service. Also returns the service.
    pub async fn require_any_service_key(&self) -> Result<(ServiceId, Arc<CurrentState>), ApiError> {
        let (key, current) = self.service_key().await?;
        Ok((key.service, current))
    }

    /// Requires an API key of any service with scope `full`.
    pub async fn require_full_key(&self) -> Result<Arc<ServiceKey>, ApiError> {
        let (key, _) = self.service_key().await?;
        let caller = Caller::Service(Arc::clone(&key));
        caller.require_full_scope_key(key.service).map_err(|reason| access_error(reason, &caller, key.service))?;
        Ok(key)
    }

    /// Requires an API key of the service with scope `full`, the owner of the service, or an administrator. `service` is the id
    /// from the path. Returns the parsed id, and the initiator for the audit log.
    pub async fn require_manager_of(&self, service: &str) -> Result<(ServiceId, Initiator), ApiError> {
        let service = parse_id(service)?;
        let caller = self.authenticate_caller().await?;
        let access = require_manager(self.context(), &caller, service).await;
        access.map_err(|error| access_error(error, &caller, service))?;
        let actor = match caller {
            Caller::Service(key) => Actor::ServiceKey(key.id),
            Caller::Human(human) => Actor::Human(human),
        };
        Ok((service, self.initiator(actor)))
    }

    /// Counts the request of an authenticated caller as this many further requests.
    pub async fn count_more(&self, requests: usize) -> Result<(), ApiError> {
        self.limiter.count_more(&self.state, requests).await
    }

    /// Authenticates a service or a human user, depending on the format of the credential.
    pub async fn authenticate_caller(&self) -> Result<Caller, ApiError> {
        let is_human_token = |credential: &SecretString| !credential.expose_secret().starts_with(SERVICE_KEY_PREFIX);
        if self.bearer.as_ref().is_some_and(is_human_token) {
            Ok(Caller::Human(self.require_human().await?))
        } else {
            Ok(Caller::Service(self.service_key().await?.0))
        }
    }

    /// The initiator in the audit log for a human user. Pass `None` for an unauthenticated caller.
    pub fn initiator_for_human(&self, human: Option<&Human>) -> Initiator {
        self.initiator(human.map_or(Actor::Public, |human| Actor::Human(human.clone())))
    }

    /// The initiator in the audit log for a service API key.
    pub fn initiator_for_key(&self, key: &ServiceKey) -> Initiator {
        self.initiator(Actor::ServiceKey(key.id))
    }

    fn initiator(&self, actor: Actor) -> Initiator {
        Initiator { actor, origin: self.origin.clone() }
    }

    pub async fn require_human(&self) -> Result<Human, ApiError> {
        match self.optional_human().await? {
            Some(human) => Ok(human),
            None => Err(self.count_failure(Reason::HumanTokenMissing).await),
        }
    }

    /// Requires an administrator. Returns the initiator for the audit log.
    pub async fn require_admin(&self) -> Result<Initiator, ApiError> {
        let human = self.require_human().await?;
        human.require_admin().map_err(|_| ApiError::admin_required(&human.identity))?;
        Ok(self.initiator(Actor::Human(human)))
    }

    /// Requires a human user who may create services.
    pub async fn require_service_creator(&self) -> Result<Human, ApiError> {
        let human = self.require_human().await?;
        require_service_creator(self.context(), &human)
            .map_err(|_| ApiError::service_creator_required(&human.identity))?;
        Ok(human)
    }

    /// Requires the owner of the service or an administrator. `service` is the id from the path.
    pub async fn require_owner_of(&self, service: &str) -> Result<(Human, Service), ApiError> {
        let human = self.require_human().await?;
        let result = require_owner(self.context(), &human, parse_id(service)?).await;
        let service = result.map_err(|error| owner_access_error(error, &human))?;
        Ok((human, service))
    }

    /// The human user; `None` if the request has no credential. An invalid credential is an error.
    pub async fn optional_human(&self) -> Result<Option<Human>, ApiError> {
        let Some(token) = &self.bearer else { return Ok(None) };
        match self.state.humans.verify(token.expose_secret(), self.context().now()).await {
            Ok(human) => {
                self.limiter.count_human(&self.state, &human).await?;
                Ok(Some(human))
            }
            Err(refusal) => Err(self.count_failure(refusal).await),
        }
    }

    /// Authenticates a service. Also returns the state of the database, read after the request arrived.
    async fn service_key(&self) -> Result<(Arc<ServiceKey>, Arc<CurrentState>), ApiError> {
        let Some(credential) = &self.bearer else {
            return Err(self.count_failure(Reason::ServiceKeyMissing).await);
        };
        match authenticate_service(self.context(), self.limiter.address(), credential.expose_secret()).await {
            Ok((key, current)) => {
                self.limiter.count_service(&self.state, &key).await?;
                Ok((key, current))
            }
            Err(error) => Err(self.count_failure(error).await),
        }
    }
}

/// Converts the error of an access check for `service`. The response contains what is required and what the caller has, and
/// nothing about other callers.
pub fn access_error(error: impl Into<ApiError>, caller: &Caller, service: ServiceId) -> ApiError {
    let error = error.into();
    match (error.reason(), caller) {
        (Some(Reason::ScopeInsufficient), Caller::Service(key)) => ApiError::scope_insufficient(key.scope),
        (Some(Reason::NotYours), Caller::Service(key)) => ApiError::other_service(service, key.service),
        (_, Caller::Human(human)) => owner_access_error(error, human),
        (_, Caller::Service(_)) => error,
    }
}

/// Like [`access_error`], for checks that require the owner or an administrator.
pub fn owner_access_error(error: impl Into<ApiError>, human: &Human) -> ApiError {
    human_access_error(error, human, ApiError::owner_required)
}

/// Replaces an error with the reason `not_yours` by `refusal`, which says what kind of access is required.
pub fn human_access_error(error: impl Into<ApiError>, human: &Human, refusal: fn(&Owner) -> ApiError) -> ApiError {
    let error = error.into();
    if error.reason() == Some(Reason::NotYours) { refusal(&human.identity) } else { error }
}
