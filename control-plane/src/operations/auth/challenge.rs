//! Ask an agent to prove that it holds its key. Nothing is stored.

use crate::{
    domain::challenge::Challenge,
    operations::{Context, NotFound, OperationError},
    store::{agents, feed, services},
};
use countersign_identity::{AgentId, ServiceId, Timestamp};

/// What the agent gets.
#[derive(Debug)]
pub struct IssuedChallenge {
    /// To be sent back with the signature.
    pub id: String,
    /// To be signed: 64 lower-case hex characters.
    pub nonce: String,
    /// From then on it is no longer usable.
    pub expires_at: Timestamp,
}

/// Issues a challenge for an agent, and for a token for the service if one is named.
pub async fn issue_challenge(
    context: &Context,
    agent: AgentId,
    service: Option<ServiceId>,
) -> Result<IssuedChallenge, OperationError> {
    let mut read = context.store.read().await?;
    let found = agents::find(read.conn(), agent).await?.ok_or(OperationError::NotFound(NotFound::Agent))?;
    found.require_active()?;
    if let Some(service) = service {
        services::find(read.conn(), service).await?.ok_or(OperationError::NotFound(NotFound::Service))?;
    }
    let challenge = Challenge {
        agent,
        service,
        expires_at: context.now().saturating_add(context.rules.challenge_life),
        unique: context.fresh(std::convert::identity),
        era: feed::position(read.conn()).await?.cutoff,
    };
    Ok(IssuedChallenge {
        id: context.challenge_keys.id(&challenge),
        nonce: hex::encode(context.challenge_keys.nonce(&challenge)),
        expires_at: challenge.expires_at,
    })
}
