//! `GET /services/:serviceId/verify`: for services without a proxy.

use crate::{
    http::{
        error::{ApiError, ErrorBody},
        openapi::{
            errors::{AgentToken, Errors, Key, NoService},
            schema::{self, ServiceInPath},
        },
        request::{
            caller::Presented,
            ids::{InPath, id},
        },
        state::AppState,
    },
    operations,
};
use axum::{
    Json,
    extract::State,
    http::{HeaderMap, HeaderValue},
    response::{IntoResponse, Response},
};
use countersign_identity::{
    AgentId, Permission, Reason, RoleName, ServiceId, TrustScore, VerifiedIdentity,
    bearer::{TOKEN_HEADER, from_token_header},
};
use serde::Serialize;
use utoipa::ToSchema;

/// A good token, and who stands behind it.
#[derive(Serialize, ToSchema)]
struct Verified {
    /// True: a bad token is an error.
    #[schema(example = true)]
    valid: bool,
    agent: VerifiedAgent,
}

/// The agent as it is now, whatever its token says.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct VerifiedAgent {
    #[schema(value_type = schema::AgentId)]
    id: AgentId,
    #[schema(value_type = schema::DisplayName)]
    name: String,
    #[schema(value_type = schema::TrustScore)]
    trust_score: TrustScore,
    /// Names of the roles that it holds at this service.
    #[schema(value_type = Vec<schema::RoleName>)]
    roles: Vec<RoleName>,
    #[schema(value_type = schema::Permissions)]
    permissions: Vec<Permission>,
}

/// The error, and once more that the token is not valid: a client that looks at either is safe. Where the error is not
/// about the agent's token, `valid` is missing.
#[derive(Serialize, ToSchema)]
pub struct RefusedToken {
    #[serde(flatten)]
    error: ErrorBody,
    /// Always false.
    #[schema(required = false)]
    valid: bool,
}

impl RefusedToken {
    /// The body of an error about a token.
    pub fn of(error: &ApiError) -> Self {
        Self { error: error.body(), valid: false }
    }
}

/// Verify an agent's token
///
/// Says who stands behind the token in `X-Agent-Token`, with the roles, permissions and trust that hold now.
#[utoipa::path(
    get, path = "/services/{service}/verify", operation_id = "verifyToken", tag = "Verification",
    params(ServiceInPath), security(("serviceKey" = [], "agentToken" = [])),
    responses(
        (status = 200, description = "The token is good", body = Verified),
        Errors<(Key, AgentToken, NoService)>,
    )
)]
pub async fn verify(
    State(state): State<AppState>,
    presented: Presented,
    InPath(service): InPath<String>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let service: ServiceId = id(&service)?;
    presented.key_of(&state, service).await?;
    Ok(match stand(&state, service, &headers).await {
        Ok(identity) => Json(present(identity)).into_response(),
        Err(error) => {
            let body = RefusedToken::of(&error);
            error.respond(body)
        }
    })
}

async fn stand(state: &AppState, service: ServiceId, headers: &HeaderMap) -> Result<VerifiedIdentity, ApiError> {
    let token = agent_token(headers)?;
    Ok(operations::verify(&state.context, service, token).await?)
}

fn agent_token(headers: &HeaderMap) -> Result<&str, Reason> {
    let values: Vec<_> = headers.get_all(TOKEN_HEADER).iter().map(HeaderValue::as_bytes).collect();
    from_token_header(&values)?.ok_or(Reason::TokenMissing)
}

fn present(identity: VerifiedIdentity) -> Verified {
    let VerifiedIdentity { agent, name, roles, permissions, trust_score, token: _ } = identity;
    Verified { valid: true, agent: VerifiedAgent { id: agent, name, trust_score, roles, permissions } }
}
