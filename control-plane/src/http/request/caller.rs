//! Who is asking: the bearer credential of a request, and what it proves.

use super::origin;
use crate::{
    domain::{
        audit::{Actor, Initiator, Origin},
        caller::{Caller, Human},
        service::ServiceKey,
    },
    http::{
        error::ApiError,
        middleware::{
            limits::{Authenticated, Gate},
            observe::RequestId,
        },
        state::AppState,
    },
    operations::{find_service_key, require_manager},
};
use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, header, request::Parts},
};
use countersign_identity::{Reason, ServiceId};
use secrecy::{ExposeSecret, SecretString};

/// What service API keys begin with; a person's token never does.
const SERVICE_CREDENTIAL: &str = "svc_";

/// The credential that came with a request, from where, and the limit it meets; what it is worth is asked by the
/// methods.
pub struct Presented {
    credential: Option<SecretString>,
    origin: Origin,
    gate: Gate,
}

impl FromRequestParts<AppState> for Presented {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let gate = Gate::of(parts)?;
        match bearer(&parts.headers) {
            Ok(credential) => Ok(Self { credential, origin: origin(parts), gate }),
            Err(Malformed) => Err(gate.refuse(state, Reason::CredentialsMalformed.into()).await),
        }
    }
}

/// Where a request came from, for the audit.
fn origin(parts: &Parts) -> Origin {
    let address = parts.extensions.get::<origin::Origin>().map(|origin| origin.address);
    Origin { address, request: parts.extensions.get::<RequestId>().map(|id| id.0.clone()) }
}

/// More than one credential, or something that is none.
struct Malformed;

/// The one bearer credential of a service or a person.
fn bearer(headers: &HeaderMap) -> Result<Option<SecretString>, Malformed> {
    let mut values = headers.get_all(header::AUTHORIZATION).into_iter();
    let Some(value) = values.next() else { return Ok(None) };
    let text = value.to_str().map_err(|_| Malformed)?;
    let (scheme, credential) = text.split_once(' ').ok_or(Malformed)?;
    let credential = credential.trim_matches(' ');
    let one =
        values.next().is_none() && !credential.is_empty() && credential.bytes().all(|byte| byte.is_ascii_graphic());
    if one && scheme.eq_ignore_ascii_case("bearer") && !credential.contains(',') {
        Ok(Some(credential.to_owned().into()))
    } else {
        Err(Malformed)
    }
}

impl Presented {
    /// A key of this very service, whatever its scope.
    pub async fn key_of(&self, state: &AppState, service: ServiceId) -> Result<ServiceKey, ApiError> {
        let caller = Caller::Service(self.service_key(state).await?);
        Ok(caller.require_key_of(service)?.clone())
    }

    /// A service's key with full scope.
    pub async fn full_key(&self, state: &AppState) -> Result<ServiceKey, ApiError> {
        let key = self.service_key(state).await?;
        Caller::Service(key.clone()).require_full_key_of(key.service)?;
        Ok(key)
    }

    /// A key of this very service with full scope.
    pub async fn full_key_of(&self, state: &AppState, service: ServiceId) -> Result<(), ApiError> {
        let key = self.key_of(state, service).await?;
        Ok(Caller::Service(key).require_full_key_of(service)?)
    }

    /// The service's key with full scope, its owner, or an administrator: whoever it is, as the author of what follows.
    pub async fn manager_of(&self, state: &AppState, service: ServiceId) -> Result<Initiator, ApiError> {
        let is_human = |credential: &SecretString| !credential.expose_secret().starts_with(SERVICE_CREDENTIAL);
        let caller = if self.credential.as_ref().is_some_and(is_human) {
            Caller::Human(self.human(state).await?)
        } else {
            Caller::Service(self.service_key(state).await?)
        };
        require_manager(&state.context, &caller, service).await?;
        Ok(self.author(match caller {
            Caller::Service(key) => Actor::ServiceKey(key.id),
            Caller::Human(human) => Actor::Human(human.owner),
        }))
    }

    /// A person, or nobody we know, as the author of what follows.
    pub fn author_of(&self, human: Option<&Human>) -> Initiator {
        self.author(human.map_or(Actor::Public, |human| Actor::Human(human.owner.clone())))
    }

    /// The holder of a key, as the author of what follows.
    pub fn author_with(&self, key: &ServiceKey) -> Initiator {
        self.author(Actor::ServiceKey(key.id))
    }

    fn author(&self, actor: Actor) -> Initiator {
        Initiator { actor, origin: self.origin.clone() }
    }

    /// A person.
    pub async fn human(&self, state: &AppState) -> Result<Human, ApiError> {
        match self.human_if_any(state).await? {
            Some(human) => Ok(human),
            None => Err(self.gate.refuse(state, Reason::HumanTokenMissing.into()).await),
        }
    }

    /// An administrator.
    pub async fn admin(&self, state: &AppState) -> Result<Human, ApiError> {
        let human = self.human(state).await?;
        human.require_admin()?;
        Ok(human)
    }

    /// A person, or nobody; a credential that is sent must be good.
    pub async fn human_if_any(&self, state: &AppState) -> Result<Option<Human>, ApiError> {
        let Some(credential) = &self.credential else { return Ok(None) };
        match verify_human(state, credential.expose_secret()).await {
            Ok(human) => {
                self.gate.admit(state, Authenticated::Human(&human)).await?;
                Ok(Some(human))
            }
            Err(error) => Err(self.gate.refuse(state, error).await),
        }
    }

    /// A service's key.
    async fn service_key(&self, state: &AppState) -> Result<ServiceKey, ApiError> {
        let found = match &self.credential {
            Some(credential) => find_service_key(&state.context, credential.expose_secret()).await,
            None => Err(Reason::ServiceKeyMissing.into()),
        };
        match found {
            Ok(key) => {
                self.gate.admit(state, Authenticated::Service(&key)).await?;
                Ok(key)
            }
            Err(error) => Err(self.gate.refuse(state, error.into()).await),
        }
    }
}

async fn verify_human(state: &AppState, token: &str) -> Result<Human, ApiError> {
    Ok(state.humans.verify(token, state.context.now()).await?)
}
