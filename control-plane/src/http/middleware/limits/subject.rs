//! The subject of a request of the category `auth`: the agent if it can be determined, else the value of the identifying field.
//!
//! Nobody has authenticated the subject: it only decides which requests are counted together. A client that varies the subject is
//! still limited by its address.

use crate::{
    domain::client_assertion::claimed_agent,
    http::{
        error::ApiError,
        request::body::{self, BodyFields, ParsedBody},
        state::AppState,
    },
    operations::{Context, find_refresh_token_agent},
};
use axum::{
    body::{Body, to_bytes},
    extract::Request,
};
use countersign_identity::AgentId;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RateLimitSubject {
    Agent(AgentId),
    /// A token. If it is a refresh token, [`Self::resolve`] finds its agent.
    Token(String),
    /// The value of another field, as the client sent it.
    Text(String),
    /// The body cannot be read, or does not contain the identifying field.
    None,
}

impl RateLimitSubject {
    /// Reads the subject from the body, and attaches the parsed body to the request for the handler.
    pub async fn from_request(state: &AppState, route: &str, request: Request) -> Result<(Self, Request), ApiError> {
        let (mut parts, body) = request.into_parts();
        // `buffer_body` has already limited the size of the body.
        let bytes = to_bytes(body, usize::MAX).await.map_err(|_| ApiError::internal())?;
        let parse = match route {
            "/auth/revoke" => body::parse_form_or_json,
            "/oauth/token" | "/oauth/revoke" => body::parse_form,
            _ => body::parse_json,
        };
        let parsed = parse(&parts.headers, &bytes);
        let subject = parsed.as_ref().ok().and_then(|fields| Self::from_fields(state, route, fields));
        parts.extensions.insert(ParsedBody(parsed));
        Ok((subject.unwrap_or(Self::None), Request::from_parts(parts, Body::from(bytes))))
    }

    /// Reads the identifying field of the route.
    fn from_fields(state: &AppState, route: &str, fields: &BodyFields) -> Option<Self> {
        let text = |name| fields.peek(name).map(str::to_owned);
        match route {
            "/auth/register" => text("publicKey").map(Self::Text),
            "/auth/challenge" => text("agentId").map(|id| id.parse().map_or(Self::Text(id), Self::Agent)),
            "/auth/authenticate" => {
                text("challengeId").map(|id| state.context.challenged_agent(&id).map_or(Self::Text(id), Self::Agent))
            }
            "/oauth/token" if fields.peek("grant_type") == Some("refresh_token") => {
                text("refresh_token").map(Self::Token)
            }
            "/oauth/token" => claimed_agent(fields.peek("client_assertion")?).map(Self::Agent),
            "/auth/refresh" => text("refreshToken").map(Self::Token),
            "/auth/revoke" | "/oauth/revoke" => text("token").map(Self::Token),
            _ => None,
        }
    }

    /// Whether [`Self::resolve`] reads the database.
    pub const fn needs_lookup(&self) -> bool {
        match self {
            Self::Token(_) => true,
            Self::Agent(_) | Self::Text(_) | Self::None => false,
        }
    }

    /// Replaces a refresh token with its agent, if the database contains the token.
    pub async fn resolve(self, context: &Context) -> Self {
        match self {
            Self::Token(token) => match find_refresh_token_agent(context, &token).await {
                Ok(Some(agent)) => Self::Agent(agent),
                // Ignore errors of the database: the handler reads the same token, so it meets and reports them.
                Ok(None) | Err(_) => Self::Text(token),
            },
            Self::Agent(_) | Self::Text(_) | Self::None => self,
        }
    }

    /// Kind and value of the counter key.
    pub fn key(&self) -> (&'static [u8], Vec<u8>) {
        match self {
            Self::Agent(agent) => (b"agent", agent.bits().to_be_bytes().to_vec()),
            Self::Token(text) | Self::Text(text) => (b"text", text.clone().into_bytes()),
            Self::None => (b"nothing", Vec::new()),
        }
    }
}
