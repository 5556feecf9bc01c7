//! Log in: a challenge, answered with a signature, yields one token pair.

use super::{
    Context, Denied, Missing, TokenPair,
    issue_token::{Fresh, issue, resolve_service},
    tell_failed_login::{emit_failed_login, login_failure_reason},
};
use crate::{
    domain::{
        agent::Agent,
        challenge::Challenge,
        session::Session,
        webhook::event::{Authenticated, Event, EventData},
    },
    store::{Write, agents, feed, services, sessions},
};
use countersign_identity::{EventId, Reason, ServiceId, SessionId, public_key::AgentSignature};
use std::net::IpAddr;

/// What an agent sends.
#[derive(Debug)]
pub struct Login {
    /// The challenge it answers.
    pub challenge: String,
    /// Hex of the signature over the nonce.
    pub signature: String,
    /// For which service the token shall be, if the agent says.
    pub service: Option<ServiceId>,
    /// Where the request came from.
    pub from: Option<IpAddr>,
}

/// Logs in. Whatever is wrong with the signature does not consume the challenge.
pub async fn authenticate(context: &Context, login: &Login) -> Result<TokenPair, Denied> {
    // Of a challenge that is none of ours nobody knows whose it is.
    let challenge = context.challenge_keys.open(&login.challenge).ok_or(Reason::ChallengeInvalid)?;
    let done = answer(context, &challenge, login).await;
    if let Some(failure) = done.as_ref().err().and_then(login_failure_reason) {
        emit_failed_login(context, (challenge.agent, challenge.service.or(login.service)), failure, login.from).await;
    }
    done
}

async fn answer(context: &Context, challenge: &Challenge, login: &Login) -> Result<TokenPair, Denied> {
    if context.now() >= challenge.expires_at {
        return Err(Reason::ChallengeExpired.into());
    }
    let service = agreed_service(challenge, login.service)?;
    prove(context, challenge, service, &login.signature).await?;

    let fresh = Fresh::of(context);
    let (session, event, fresh_ref) = (context.fresh(SessionId::from_bits), context.fresh(EventId::from_bits), &fresh);
    let work = async |mut tx: Write| {
        let position = feed::position(tx.conn()).await?;
        if challenge.era != position.cutoff {
            return Err(Reason::ChallengeExpired.into());
        }
        let rev = position.revision;
        let agent = active_agent(&mut tx, challenge).await?;
        let now = tx.now();
        let service = match service {
            Some(service) => Some(service),
            None => resolve_service(tx.conn(), &agent, now).await?,
        };
        let session = Session {
            id: session,
            agent: agent.id,
            service,
            begun_at: now,
            begun_revision: rev,
            expires_at: now.after(context.rules.refresh_life),
            ended_at: None,
        };
        if !sessions::begin(tx.conn(), &session, &challenge.unique_text()).await? {
            return Err(Denied::from(Reason::ChallengeUsed));
        }
        let issued = issue(&mut tx, context, fresh_ref, rev, (&agent, &session, service)).await?;
        let data = Authenticated { agent_id: agent.id, service_id: service, ip_address: login.from };
        tx.tell(Event { id: event, at: now, data: EventData::Authenticated(data) });
        Ok(tx.commit(issued).await?)
    };
    let issued = context.store.write("authenticate", work).await?;
    fresh.sign(context, &issued)
}

/// The service that challenge and login agree on.
fn agreed_service(challenge: &Challenge, wanted: Option<ServiceId>) -> Result<Option<ServiceId>, Denied> {
    match (challenge.service, wanted) {
        (Some(asked), Some(wanted)) if asked != wanted => {
            Err(Denied::Invalid { field: "serviceId", message: "must be the service that the challenge was asked for" })
        }
        (asked, wanted) => Ok(asked.or(wanted)),
    }
}

/// Checks the answer outside of any write transaction: only who holds the key gets to the writer.
async fn prove(
    context: &Context,
    challenge: &Challenge,
    service: Option<ServiceId>,
    signature: &str,
) -> Result<(), Denied> {
    let mut read = context.store.read().await?;
    if sessions::used_challenge(read.conn(), &challenge.unique_text()).await? {
        return Err(Reason::ChallengeUsed.into());
    }
    // Not of this database: one of before is back.
    let agent = agents::find(read.conn(), challenge.agent).await?.ok_or(Reason::ChallengeInvalid)?;
    // Asked before the signature is looked at: webhooks are not told of services that do not exist.
    if let Some(service) = service {
        services::find(read.conn(), service).await?.ok_or(Denied::Missing(Missing::Service))?;
    }
    let signature = AgentSignature::from_hex(signature).map_err(|_| Denied::InvalidSignature)?;
    let nonce = context.challenge_keys.nonce(challenge);
    // Signed are the UTF-8 bytes of the nonce as sent; the 32 bytes that it encodes are accepted too.
    if !agent.registration.key.verifies(&[hex::encode(nonce).as_bytes(), &nonce], &signature) {
        return Err(Denied::InvalidSignature);
    }
    Ok(agent.require_active()?)
}

async fn active_agent(tx: &mut Write, challenge: &Challenge) -> Result<Agent, Denied> {
    let agent = agents::find(tx.conn(), challenge.agent).await?.ok_or(Reason::ChallengeInvalid)?;
    agent.require_active()?;
    Ok(agent)
}
