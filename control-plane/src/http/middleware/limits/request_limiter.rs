//! Applies the limits to a request: after authentication, or before the handler if the route authenticates nobody, as for a login.

use super::{Category, CategoryKey, LimitDecision, LimitStatus, RateLimitSubject, category, headers::add_headers};
use crate::{
    domain::{caller::Human, service::ServiceKey},
    http::{error::ApiError, request::client_address::ClientAddress, state::AppState},
};
use axum::{
    extract::{MatchedPath, Request},
    http::request::Parts,
    response::{IntoResponse, Response},
};
use countersign_identity::AgentId;
use std::{
    net::IpAddr,
    sync::{Arc, OnceLock},
};

/// Counts one request, and stores the status of its limits for the response headers. The limiter is an extension of the request.
#[derive(Debug, Clone)]
pub struct RequestLimiter {
    category: Option<Category>,
    address: IpAddr,
    /// The status of each limit after the request was counted or refused.
    statuses: Arc<OnceLock<Vec<LimitStatus>>>,
    /// The counters in which this request was counted.
    counted: Arc<OnceLock<Vec<CategoryKey>>>,
    /// The status of each limit after [`Self::count_more`]. If it is set, the response shows it instead of `statuses`.
    final_statuses: Arc<OnceLock<Vec<LimitStatus>>>,
    /// The status of the limit per agent, once the agent has proved its identity.
    agent_status: Arc<OnceLock<LimitStatus>>,
}

/// Attaches a [`RequestLimiter`] to a request, counts the request now if its route authenticates nobody, and adds the limits to the
/// response headers.
pub async fn enforce_rate_limits(
    state: &AppState,
    mut request: Request,
    next: impl AsyncFnOnce(Request) -> Response,
) -> Response {
    let route = request.extensions().get::<MatchedPath>().map(|route| route.as_str().to_owned());
    let Some(ClientAddress { ip, .. }) = request.extensions().get().copied() else {
        return ApiError::internal().into_response();
    };
    // Unknown paths are not limited, because their response is constant.
    let Some(route) = route else { return next(request).await };
    let limiter = RequestLimiter {
        category: category(&route),
        address: ip,
        statuses: Arc::default(),
        counted: Arc::default(),
        final_statuses: Arc::default(),
        agent_status: Arc::default(),
    };
    request.extensions_mut().insert(limiter.clone());
    let result = match limiter.category {
        Some(Category::Auth) => limiter.count_auth_request(state, &route, request).await,
        // The metadata of a service: the request names no agent, so only its address counts.
        Some(Category::AuthAddress) => {
            let keys = |category| vec![CategoryKey::for_address(category, limiter.address)];
            limiter.count(state, keys).await.map(|()| request)
        }
        _ => Ok(request),
    };
    let mut response = match result {
        Ok(request) => next(request).await,
        Err(error) => error.into_response(),
    };
    if let Some(statuses) = limiter.final_statuses.get().or(limiter.statuses.get()) {
        let statuses: Vec<_> = statuses.iter().chain(limiter.agent_status.get()).copied().collect();
        add_headers(&statuses, response.headers_mut());
    }
    response
}

impl RequestLimiter {
    pub fn from_parts(parts: &Parts) -> Result<Self, ApiError> {
        // `enforce_rate_limits` adds a `RequestLimiter` to every request that has a route.
        parts.extensions.get().cloned().ok_or_else(ApiError::internal)
    }

    pub const fn address(&self) -> IpAddr {
        self.address
    }

    /// Counts a request of an authenticated service. The address does not matter, so other clients at the same address cannot use
    /// up the limit.
    pub async fn count_service(&self, state: &AppState, key: &ServiceKey) -> Result<(), ApiError> {
        self.count(state, |category| CategoryKey::for_service_key(category, key)).await
    }

    /// Counts a request of a human user, like [`Self::count_service`].
    pub async fn count_human(&self, state: &AppState, human: &Human) -> Result<(), ApiError> {
        self.count(state, |category| vec![CategoryKey::for_person(category, &human.identity)]).await
    }

    /// Counts a request of an authenticated caller as this many further requests. If the limit allows one more request, all of them
    /// are allowed, even if they exceed the limit.
    pub async fn count_more(&self, state: &AppState, requests: usize) -> Result<(), ApiError> {
        let Some(keys) = self.counted.get().filter(|_| requests > 0) else { return Ok(()) };
        let repeated: Vec<_> = std::iter::repeat_n(keys, requests).flatten().copied().collect();
        let mut decision = state.limits.acquire(&repeated).await;
        // There is a status for each repetition of a key. Those of the last repetition are the final ones, so we drop the others.
        decision.statuses.drain(..repeated.len() - keys.len());
        let result = refuse_exhausted(state, &decision);
        // `set` fails if `count_more` was called before; each handler calls it at most once.
        let _ignored = self.final_statuses.set(decision.statuses);
        result
    }

    /// Counts a login or refresh for an agent that has proved its identity, whatever its address. Must be called before the
    /// session or its tokens are written.
    pub async fn count_agent(&self, state: &AppState, agent: AgentId) -> Result<(), ApiError> {
        let decision = state.limits.acquire(&[CategoryKey::for_agent(agent)]).await;
        if let Some(status) = decision.statuses.first() {
            // `set` fails if the agent was already counted; a request has one agent.
            let _ignored = self.agent_status.set(*status);
        }
        refuse_exhausted(state, &decision)
    }

    /// Counts a failed authentication by client address, unless a limit has counted the request already. Returns the error, or a
    /// rate limit error if there were too many failures.
    pub async fn count_failure(&self, state: &AppState, error: ApiError) -> ApiError {
        if !error.is_unauthenticated() || self.category.is_none() || self.statuses.get().is_some() {
            return error;
        }
        let decision = state.limits.count_failure(self.address).await;
        self.apply(state, decision).err().unwrap_or(error)
    }

    /// Counts the request unless it was counted before: a registration by a human user is counted before authentication.
    async fn count(&self, state: &AppState, keys: impl FnOnce(Category) -> Vec<CategoryKey>) -> Result<(), ApiError> {
        match self.category {
            Some(category) if self.statuses.get().is_none() => {
                let keys = keys(category);
                let decision = state.limits.acquire(&keys).await;
                // `set` fails if the request was already counted.
                let _ignored = self.counted.set(keys);
                self.apply(state, decision)
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Counts a request of the category [`Category::Auth`] by address, and by address and subject.
    async fn count_auth_request(&self, state: &AppState, route: &str, request: Request) -> Result<Request, ApiError> {
        let (subject, request) = RateLimitSubject::from_request(state, route, request).await?;
        let address_key = CategoryKey::for_address(Category::AuthAddress, self.address);
        if subject.needs_lookup() {
            // Check the limit by address first, so that a client that has exceeded it causes no reads of the database.
            let decision = state.limits.peek(&[address_key]).await;
            if !decision.allowed {
                return self.apply(state, decision).map(|()| request);
            }
        }
        let (limits, context, address) = (state.limits.clone(), state.context.clone(), self.address);
        // A task of its own, so that the request is counted even if its client disconnects during the lookup.
        let counted = tokio::spawn(async move {
            let subject = subject.resolve(&context).await;
            limits.acquire(&[CategoryKey::for_auth_subject(address, &subject), address_key]).await
        });
        let decision = counted.await.map_err(|_| ApiError::internal())?;
        self.apply(state, decision).map(|()| request)
    }

    /// Stores the status of the limits for the response, and returns an error if a limit is exceeded.
    fn apply(&self, state: &AppState, decision: LimitDecision) -> Result<(), ApiError> {
        let result = refuse_exhausted(state, &decision);
        // `set` fails if the request was already counted; no caller of `apply` counts a request twice.
        let _ignored = self.statuses.set(decision.statuses);
        result
    }
}

/// Returns an error if a limit is exceeded.
fn refuse_exhausted(state: &AppState, decision: &LimitDecision) -> Result<(), ApiError> {
    let Some(status) = decision.exhausted() else { return Ok(()) };
    state.metrics.rate_limited.with_label_values(&[status.category.as_str()]).inc();
    Err(ApiError::rate_limited(&status))
}
