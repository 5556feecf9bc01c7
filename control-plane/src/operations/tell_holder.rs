//! Finds the agent of a refresh token, for rate limits that apply before the token is verified.

use super::{Context, Denied};
use crate::{domain::credential::Credential, store::sessions};
use countersign_identity::{AgentId, RefreshId};

/// The agent whose session the refresh token with this id continues. Does not verify the secret of the token, so the
/// result is good for rate limits only, and must not authenticate anyone.
pub async fn find_refresh_token_agent(context: &Context, token: &str) -> Result<Option<AgentId>, Denied> {
    let Some(credential) = Credential::<RefreshId>::parse(token) else { return Ok(None) };
    Ok(sessions::find_holder(context.store.read().await?.conn(), credential.id()).await?)
}
