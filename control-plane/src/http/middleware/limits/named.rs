//! Whom a call under `/auth` is about: the agent, if that can be told, else what the call names instead of it.
//!
//! Nothing here is proven. It only says which calls are counted together; whoever makes up names is counted by
//! address.

use crate::{
    http::{
        error::ApiError,
        request::body::{Fields, FormOrJson},
        state::AppState,
    },
    operations::{Context, find_refresh_token_agent},
};
use axum::{
    body::{Body, Bytes, to_bytes},
    extract::{FromRequest, Request},
};
use countersign_identity::AgentId;

/// What a call names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Named {
    /// An agent.
    Agent(AgentId),
    /// A token, which may be a refresh token of an agent.
    Token(String),
    /// Something else, as it was sent.
    Text(String),
    /// Nothing that can be read.
    Nothing,
}

impl Named {
    /// Reads it from the body, and gives the request back as it was.
    pub async fn read(state: &AppState, route: &str, request: Request) -> Result<(Self, Request), ApiError> {
        let (parts, body) = request.into_parts();
        // It was taken in before, up to a limit.
        let bytes = to_bytes(body, usize::MAX).await.map_err(|_| ApiError::internal())?;
        let request = |bytes: &Bytes| Request::from_parts(parts.clone(), Body::from(bytes.clone()));
        let fields = if route == "/auth/revoke" {
            FormOrJson::from_request(request(&bytes), state).await.map(|FormOrJson(fields)| fields)
        } else {
            Fields::from_request(request(&bytes), state).await
        };
        let named = fields.ok().and_then(|fields| Self::in_fields(state, route, &fields));
        Ok((named.unwrap_or(Self::Nothing), request(&bytes)))
    }

    /// The field that identifies, by route.
    fn in_fields(state: &AppState, route: &str, fields: &Fields) -> Option<Self> {
        let text = |name| fields.peek(name).map(str::to_owned);
        match route {
            "/auth/register" => text("publicKey").map(Self::Text),
            "/auth/challenge" => text("agentId").map(|id| id.parse().map_or(Self::Text(id), Self::Agent)),
            "/auth/authenticate" => {
                text("challengeId").map(|id| state.context.challenged_agent(&id).map_or(Self::Text(id), Self::Agent))
            }
            "/auth/refresh" => text("refreshToken").map(Self::Token),
            "/auth/revoke" => text("token").map(Self::Token),
            _ => None,
        }
    }

    /// Whether only the database knows more.
    pub const fn must_be_looked_up(&self) -> bool {
        match self {
            Self::Token(_) => true,
            Self::Agent(_) | Self::Text(_) | Self::Nothing => false,
        }
    }

    /// The agent behind a token, if the database knows it.
    pub async fn looked_up(self, context: &Context) -> Self {
        match self {
            Self::Token(token) => match find_refresh_token_agent(context, &token).await {
                Ok(Some(agent)) => Self::Agent(agent),
                // A database that is out is told by whoever needs it.
                Ok(None) | Err(_) => Self::Text(token),
            },
            Self::Agent(_) | Self::Text(_) | Self::Nothing => self,
        }
    }

    /// What it is counted by.
    pub fn key(&self) -> (&'static [u8], Vec<u8>) {
        match self {
            Self::Agent(agent) => (b"agent", agent.bits().to_be_bytes().to_vec()),
            Self::Token(text) | Self::Text(text) => (b"text", text.clone().into_bytes()),
            Self::Nothing => (b"nothing", Vec::new()),
        }
    }
}
