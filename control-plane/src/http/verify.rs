//! `GET /services/:serviceId/verify`: for services without a proxy.

use super::{
    caller::Presented,
    error::ApiError,
    ids::{Path, id},
    router::AppState,
};
use crate::operations;
use axum::{
    Json,
    extract::State,
    http::{HeaderMap, HeaderValue},
    response::{IntoResponse, Response},
};
use countersign_identity::{
    Reason, ServiceId, Standing,
    bearer::{TOKEN_HEADER, in_token_header},
};
use serde_json::json;

/// Says who stands behind the agent's token. A bad token gets the error *and* `"valid": false`, so that
/// a client that looks at either is safe.
pub async fn verify(
    State(state): State<AppState>,
    presented: Presented,
    Path(service): Path<String>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let service: ServiceId = id(&service)?;
    presented.key_of(&state, service).await?;
    Ok(match stand(&state, service, &headers).await {
        Ok(standing) => Json(present(&standing)).into_response(),
        Err(error) => {
            let mut body = error.body();
            body["valid"] = json!(false);
            error.respond(body)
        }
    })
}

async fn stand(state: &AppState, service: ServiceId, headers: &HeaderMap) -> Result<Standing, ApiError> {
    let token = agent_token(headers)?;
    Ok(operations::verify(&state.context, service, token).await?)
}

fn agent_token(headers: &HeaderMap) -> Result<&str, Reason> {
    let values: Vec<_> = headers.get_all(TOKEN_HEADER).iter().map(HeaderValue::as_bytes).collect();
    in_token_header(&values)?.ok_or(Reason::TokenMissing)
}

fn present(standing: &Standing) -> serde_json::Value {
    let Standing { agent, name, roles, permissions, trust_score, token: _ } = standing;
    json!({
        "valid": true,
        "agent": { "id": agent, "name": name, "trustScore": trust_score, "roles": roles, "permissions": permissions },
    })
}
