//! Finds the agent of a refresh token, for rate limits.

use crate::{
    domain::session::RefreshToken,
    operations::{Context, OperationError},
    store::sessions,
};
use countersign_identity::AgentId;

/// Finds the agent of the session that a refresh token names. Does not verify the secret, so the result must only be used to count
/// requests.
pub async fn find_refresh_token_agent(context: &Context, token: &str) -> Result<Option<AgentId>, OperationError> {
    let Some(token) = RefreshToken::parse(token) else { return Ok(None) };
    let session = context.store.read_one(async |conn| sessions::find(conn, token.session()).await).await?;
    Ok(session.map(|session| session.agent))
}
