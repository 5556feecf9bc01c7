//! The limits as one request meets them: under `/auth` before anything is done, elsewhere once it is known who asks.

use super::{Category, Counted, Named, Ruling, Told, category, headers};
use crate::{
    domain::{caller::Human, service::ServiceKey},
    http::{error::ApiError, request::origin::Origin, state::AppState},
};
use axum::{
    extract::{MatchedPath, Request, State},
    http::request::Parts,
    middleware::Next,
    response::{IntoResponse, Response},
};
use std::{
    net::IpAddr,
    sync::{Arc, OnceLock},
};

/// The limits as one request meets them. It is counted once, and its answer tells what is left.
#[derive(Debug, Clone)]
pub struct Gate {
    category: Option<Category>,
    address: IpAddr,
    told: Arc<OnceLock<Vec<Told>>>,
}

/// Counts calls under `/auth`, gives all others the gate to go through, and tells in the answer what is left.
pub async fn limit(State(state): State<AppState>, mut request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map(|route| route.as_str().to_owned());
    let Some(Origin { address, .. }) = request.extensions().get().copied() else {
        return ApiError::internal().into_response();
    };
    // What leads nowhere gives nothing, and costs nothing.
    let Some(route) = route else { return next.run(request).await };
    let gate = Gate { category: category(&route), address, told: Arc::default() };
    request.extensions_mut().insert(gate.clone());
    let admitted = if gate.category == Some(Category::Auth) {
        gate.count_named(&state, &route, request).await
    } else {
        Ok(request)
    };
    let mut response = match admitted {
        Ok(request) => next.run(request).await,
        Err(error) => error.into_response(),
    };
    headers::tell(gate.told.get(), response.headers_mut());
    response
}

/// Whoever was authenticated.
pub enum Authenticated<'a> {
    /// A service, by a key.
    Service(&'a ServiceKey),
    /// A person.
    Human(&'a Human),
}

impl Gate {
    /// The gate of a request.
    pub fn of(parts: &Parts) -> Result<Self, ApiError> {
        // Every request passed the layer that puts it in.
        parts.extensions.get().cloned().ok_or_else(ApiError::internal)
    }

    /// Counts an authenticated caller. What others at its address do is nothing to it.
    pub async fn admit(&self, state: &AppState, caller: Authenticated<'_>) -> Result<(), ApiError> {
        self.count(state, |category| match caller {
            Authenticated::Service(key) => Counted::service(category, key.service),
            Authenticated::Human(human) => Counted::human(category, human),
        })
        .await
    }

    /// Counts a failed authentication by its address, and says how it failed, or that this was once too often.
    pub async fn refuse(&self, state: &AppState, error: ApiError) -> ApiError {
        if !error.is_unauthenticated() {
            return error;
        }
        let counted = self.count(state, |_| Counted::address(Category::Failures, self.address)).await;
        counted.err().unwrap_or(error)
    }

    /// Under `/auth` it was counted before anybody was asked for a credential.
    async fn count(&self, state: &AppState, who: impl FnOnce(Category) -> Counted) -> Result<(), ApiError> {
        match self.category {
            Some(category) if self.told.get().is_none() => self.judge(state, state.limits.take(&[who(category)]).await),
            Some(_) | None => Ok(()),
        }
    }

    /// Counts a call by its address, and by its address and whom it names.
    async fn count_named(&self, state: &AppState, route: &str, request: Request) -> Result<Request, ApiError> {
        let (named, request) = Named::read(state, route, request).await?;
        let by_address = Counted::address(Category::AuthAddress, self.address);
        if named.must_be_looked_up() {
            let seen = state.limits.look(&[by_address]).await;
            if !seen.granted {
                return self.judge(state, seen).map(|()| request);
            }
        }
        let named = named.looked_up(&state.context).await;
        let ruling = state.limits.take(&[Counted::named(self.address, &named), by_address]).await;
        self.judge(state, ruling).map(|()| request)
    }

    fn judge(&self, state: &AppState, ruling: Ruling) -> Result<(), ApiError> {
        let exhausted = ruling.exhausted();
        let _told_before = self.told.set(ruling.told);
        let Some(told) = exhausted else { return Ok(()) };
        state.metrics.rate_limited.with_label_values(&[told.category.name()]).inc();
        Err(ApiError::rate_limited(&told))
    }
}
