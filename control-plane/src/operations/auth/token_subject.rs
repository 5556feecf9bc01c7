//! Finds the agent of a refresh token, for rate limits.

use crate::{
    domain::credential::Credential,
    operations::{Context, OperationError},
    store::sessions,
};
use countersign_identity::{AgentId, RefreshId};

/// Finds the agent of the session that a refresh token belongs to. Does not verify the secret, so the result must only be
/// used to count requests.
pub async fn find_refresh_token_agent(context: &Context, token: &str) -> Result<Option<AgentId>, OperationError> {
    let Some(credential) = Credential::<RefreshId>::parse(token) else { return Ok(None) };
    let id = credential.id();
    Ok(context.store.read_one(async |conn| sessions::find_agent_by_token(conn, id).await).await?)
}
