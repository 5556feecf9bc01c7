//! Issues challenges. Nothing is stored in the database for a challenge.

use crate::{
    domain::challenge::Challenge,
    operations::{Context, NotFound, OperationError},
    store::{agents, feed, services},
};
use countersign_identity::{AgentId, ServiceId, Timestamp};

/// A challenge as sent to the agent.
#[derive(Debug)]
pub struct IssuedChallenge {
    /// Challenge id, which the agent sends back with the signature.
    pub id: String,
    /// Nonce to sign: 64 lower-case hex characters.
    pub nonce: String,
    /// Time from which the challenge is invalid.
    pub expires_at: Timestamp,
}

/// Issues a challenge to an agent. With `service`, the token will be bound to that service.
pub async fn issue_challenge(
    context: &Context,
    agent: AgentId,
    service: Option<ServiceId>,
) -> Result<IssuedChallenge, OperationError> {
    let mut read = context.store.read().await?;
    let registered = agents::find(read.conn(), agent).await?.ok_or(OperationError::NotFound(NotFound::Agent))?;
    registered.require_active()?;
    if let Some(service) = service {
        services::find_live(read.conn(), service).await?.ok_or(OperationError::NotFound(NotFound::Service))?;
    }
    let challenge = Challenge {
        agent,
        service,
        expires_at: context.now().saturating_add(context.config.challenge_lifetime),
        random_id: context.new_id(std::convert::identity),
        restore_revision: feed::position(read.conn()).await?.cutoff,
    };
    Ok(IssuedChallenge {
        id: context.challenge_keys.encode_id(&challenge),
        nonce: hex::encode(context.challenge_keys.nonce(&challenge)),
        expires_at: challenge.expires_at,
    })
}
