//! Issues challenges. Nothing is stored in the database for a challenge.

use super::issue::read_basis;
use crate::{
    domain::{
        agent::require_active,
        challenge::{self, Challenge},
    },
    operations::{Context, NotFound, OperationError},
    store::{
        Conn, StoreError,
        logins::{LoginBasis, LoginQuery},
        master_keys,
    },
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
    let query = LoginQuery { agent, service, challenge: None };
    let LoginBasis { agent: found, has_service, position, .. } = read_basis(context, &query).await?;
    require_active(found.ok_or(NotFound::Agent)?.status)?;
    if service.is_some() && !has_service {
        return Err(NotFound::Service.into());
    }
    let challenge = Challenge {
        agent,
        service,
        expires_at: context.now().saturating_add(challenge::LIFETIME),
        random_id: context.new_id(std::convert::identity),
        restore_revision: position.cutoff,
    };
    let master_key = context.store.read_one(async |conn: &mut Conn| master_keys::find(conn).await).await?.current;
    let keys = context.challenge_keys.find(&master_key).ok_or(StoreError::MissingMasterKey(master_key))?;
    Ok(IssuedChallenge {
        id: keys.encode_id(&challenge),
        nonce: hex::encode(keys.nonce(&challenge)),
        expires_at: challenge.expires_at,
    })
}
