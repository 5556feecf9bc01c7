//! Register an agent: from here on, whoever holds the private half of the key is that agent.

use crate::{
    domain::{
        agent::{Agent, Registration},
        audit::{AuditAction, Initiator, NewAuditEntry},
        caller::Human,
        text::{DisplayName, EmailAddress, Metadata},
    },
    operations::{Context, OperationError, Reply},
    store::agents,
};
use countersign_identity::{AgentId, AgentStatus, P256PublicKey, Reason, Revision, TrustScore};
use serde::{Serialize, de::DeserializeOwned};

/// What is asked for.
#[derive(Debug)]
pub struct RegistrationRequest {
    /// Where the registrant can be written to.
    pub email: EmailAddress,
    /// What people call the agent.
    pub name: DisplayName,
    /// The public half of its key.
    pub key: P256PublicKey,
    /// What its owner attaches.
    pub metadata: Metadata,
}

/// Registers the agent. The same key under the same name by the same registrant is the same agent;
/// anything else is a new one, so that nobody can squat a key.
pub async fn register_agent<R: Serialize + DeserializeOwned>(
    context: &Context,
    by: &Initiator,
    human: Option<Human>,
    request: RegistrationRequest,
    reply: &Reply<Agent, R>,
) -> Result<R, OperationError> {
    if human.is_none() && !context.rules.public_registration {
        return Err(Reason::HumanTokenMissing.into());
    }
    let RegistrationRequest { email, name, key, metadata } = request;
    let key_hash = key
        .fingerprint()
        .map_err(|_| OperationError::Invalid { field: "publicKey", message: "must be a P-256 key" })?;
    // Of people whom we do not know, an address is all that tells them apart.
    let registrant = if human.is_none() { email.as_str() } else { "" };
    let once = &reply.to(by, &["register_agent", registrant]);
    let owner = human.map(|human| human.owner);
    let registration = &Registration { owner, email, name, key, key_hash, metadata };
    let id = context.fresh(AgentId::from_bits);
    let work = async |mut tx: crate::store::Write| {
        if let Some(answer) = once.before(&mut tx).await? {
            return Ok(tx.commit(answer).await?);
        }
        if let Some(same) = agents::find_by_registration(tx.conn(), registration).await? {
            let answer = once.after(&mut tx, &same).await?;
            return Ok(tx.commit(answer).await?);
        }
        let now = tx.now();
        let agent = Agent {
            id,
            registration: registration.clone(),
            status: AgentStatus::Active,
            cutoff: Revision::default(),
            trust: TrustScore::INITIAL,
            created_at: now,
            updated_at: now,
            last_seen_at: None,
        };
        agents::insert(tx.conn(), &agent).await?;
        let entry = NewAuditEntry::for_deployment(AuditAction::AgentRegistered)
            .agent(id)
            .detail("name", registration.name.as_str());
        tx.audit(by, &entry.detail("publicKeyHash", registration.key_hash.as_str())).await?;
        let answer = once.after(&mut tx, &agent).await?;
        Ok(tx.commit(answer).await?)
    };
    context.store.write("register_agent", work).await
}
