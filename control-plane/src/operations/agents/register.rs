//! Registers an agent with its public key.

use crate::{
    domain::{
        agent::{Agent, Owner, Registration},
        audit::{AuditAction, Initiator, NewAuditEntry},
        caller::Human,
        quota::{ExceededQuota, Quotas},
        text::{DisplayName, EmailAddress, Metadata},
        total::Total,
    },
    operations::{Context, IdempotentResponse, OperationError},
    store::{StoreError, WriteTransaction, agents, quotas, totals, unused_agents},
};
use countersign_identity::{AgentId, AgentStatus, P256PublicKey, Reason, Revision, TrustScore};
use serde::{Serialize, de::DeserializeOwned};

#[derive(Debug)]
pub struct RegistrationRequest {
    /// E-mail address of the registrant.
    pub email: EmailAddress,
    pub name: DisplayName,
    pub key: P256PublicKey,
    /// Free-form JSON from the registrant.
    pub metadata: Metadata,
}

/// Registers an agent. If the same registrant has already registered the same key and name, returns the existing agent. With
/// another registrant or another name, registers a new agent with this key: if this were an error, an attacker could block a key by
/// registering it first. `agent_of` returns the agent that a response describes.
pub async fn register_agent<R: Serialize + DeserializeOwned>(
    context: &Context,
    initiator: &Initiator,
    human: Option<Human>,
    request: RegistrationRequest,
    reply: &IdempotentResponse<Agent, R>,
    agent_of: fn(&R) -> AgentId,
) -> Result<R, OperationError> {
    if human.is_none() && context.config.quotas.public_agents == 0 {
        return Err(Reason::HumanTokenMissing.into());
    }
    let RegistrationRequest { email, name, key, metadata } = request;
    let key_hash = key
        .fingerprint()
        .map_err(|_| OperationError::Invalid { field: "publicKey", message: "must be a P-256 key" })?;
    // All registrants without a token have the same initiator, so we tell them apart by their e-mail addresses.
    let registrant = if human.is_none() { email.as_str() } else { "" };
    let idempotency = &reply.guard(initiator, &["register_agent", registrant]);
    let owner = human.map(|human| human.identity);
    let registration = &Registration { owner, email, name, key, key_hash, metadata };
    let id = context.new_id(AgentId::from_bits);
    let work = async |mut tx: WriteTransaction| {
        if let Some(response) = idempotency.stored_response(&mut tx).await? {
            // If the agent in the stored response was deleted since, the repeated request registers the key again.
            if agents::find(tx.conn(), agent_of(&response)).await?.is_some() {
                return Ok(tx.commit(response).await?);
            }
        }
        let agent = find_or_insert(&mut tx, context, initiator, id, registration).await?;
        let response = idempotency.store_response(&mut tx, &agent).await?;
        Ok(tx.commit(response).await?)
    };
    context.store.write("register_agent", work).await
}

async fn find_or_insert(
    tx: &mut WriteTransaction,
    context: &Context,
    initiator: &Initiator,
    id: AgentId,
    registration: &Registration,
) -> Result<Agent, OperationError> {
    if let Some(existing) = agents::find_by_registration(tx.conn(), registration).await? {
        return Ok(existing);
    }
    require_quota(tx, context.config.quotas, registration.owner.as_ref()).await?;
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
        last_service: None,
    };
    if !agents::insert(tx.conn(), &agent).await? {
        // A concurrent transaction has inserted the agent after the search above.
        let existing = agents::find_by_registration(tx.conn(), registration).await?;
        return Ok(existing.ok_or(StoreError::UnexpectedRowCount("register_agent"))?);
    }
    totals::add(tx.conn(), Total::ActiveAgents, 1).await?;
    if registration.owner.is_none() {
        totals::add(tx.conn(), Total::PublicAgents, 1).await?;
        unused_agents::insert(tx.conn(), id, now).await?;
    }
    // The entry must not contain the name or the key: an audit entry cannot be erased with the agent.
    tx.audit(initiator, &NewAuditEntry::for_deployment(AuditAction::AgentRegistered).agent(id)).await?;
    Ok(agent)
}

/// Requires that the quota of the owner, or of public registrations, leaves room for one more agent. We read the total of public
/// agents without a lock, so concurrent registrations can exceed the quota by a few agents.
async fn require_quota(tx: &mut WriteTransaction, limits: Quotas, owner: Option<&Owner>) -> Result<(), OperationError> {
    let now = tx.now();
    let Some(owner) = owner else {
        let limit = limits.public_agents;
        let is_reached = totals::find(tx.conn(), Total::PublicAgents).await? >= i64::from(limit);
        return if is_reached { Err(ExceededQuota::PublicAgents(limit).into()) } else { Ok(()) };
    };
    quotas::lock_owner(tx.conn(), owner, now).await?;
    let limit = limits.agents_per_person;
    let is_reached = quotas::agent_quota_is_reached(tx.conn(), owner, limit, now).await?;
    if is_reached { Err(ExceededQuota::AgentsPerPerson(limit).into()) } else { Ok(()) }
}
