//! Whose a refresh token says it is: for those who must know before they look at anything else.

use crate::{
    domain::credential::Credential,
    operations::{Context, OperationError},
    store::sessions,
};
use countersign_identity::{AgentId, RefreshId};

/// The agent whose login the refresh token of this id continues. Its secret is not looked at, so this is good for
/// counting and for nothing else.
pub async fn find_refresh_token_agent(context: &Context, token: &str) -> Result<Option<AgentId>, OperationError> {
    let Some(presented) = Credential::<RefreshId>::parse(token) else { return Ok(None) };
    Ok(sessions::find_agent_by_token(context.store.read().await?.conn(), presented.id()).await?)
}
