//! Feedback of services about agents, and the trust scores that result from it.

use super::{Context, IdempotentReply, NotFound, OperationError};
use crate::{
    domain::{
        audit::Initiator,
        page::{ListPage, Page},
        text::{Description, Metadata},
        trust::{Feedback, Rating, Score, remove_excess_ratings, trust_score},
        webhook::event::{Event, EventData, FeedbackReceivedEvent},
    },
    store::{self, WriteTransaction, agents, services},
};
use countersign_identity::{AgentId, EventId, FeedbackId, ServiceId, TrustScore};
use serde::{Serialize, de::DeserializeOwned};

pub use crate::store::trust::FeedbackPosition;

/// The feedback to submit.
#[derive(Debug)]
pub struct FeedbackRequest {
    /// Service that gives the feedback.
    pub service: ServiceId,
    /// Rated agent.
    pub agent: AgentId,
    /// Score.
    pub score: Score,
    /// Reason for the score.
    pub reason: Description,
    /// Free-form JSON from the service.
    pub metadata: Metadata,
}

/// Stores feedback and returns the new trust score of the agent. Locks the row of the agent first, which serializes feedback
/// about the same agent.
pub async fn submit_feedback<R: Serialize + DeserializeOwned>(
    context: &Context,
    initiator: &Initiator,
    request: &FeedbackRequest,
    reply: &IdempotentReply<TrustScore, R>,
) -> Result<R, OperationError> {
    let idempotency = &reply.guard(initiator, &["submit_feedback"]);
    let (id, event) = (context.new_id(FeedbackId::from_bits), context.new_id(EventId::from_bits));
    let FeedbackRequest { service, agent, score, reason, metadata } = request;
    let work = async |mut tx: WriteTransaction| {
        if let Some(response) = idempotency.stored_response(&mut tx).await? {
            return Ok(tx.commit(response).await?);
        }
        let now = tx.now();
        if !agents::lock(tx.conn(), *agent).await? {
            return Err(OperationError::NotFound(NotFound::Agent));
        }
        // The service may have been deleted after its API key was checked.
        services::find_live(tx.conn(), *service).await?.ok_or(OperationError::NotFound(NotFound::Service))?;
        let registered = agents::find(tx.conn(), *agent).await?.ok_or(OperationError::NotFound(NotFound::Agent))?;
        let before = store::trust::find_rating(tx.conn(), *agent, *service).await?;
        let rating = before.unwrap_or_else(|| Rating::new(*service, now)).with_feedback(*score, now);
        store::trust::upsert_rating(tx.conn(), *agent, &rating).await?;
        let mut ratings = store::trust::list_ratings(tx.conn(), *agent, now).await?;
        for service in remove_excess_ratings(&mut ratings) {
            store::trust::delete_rating(tx.conn(), *agent, service).await?;
        }
        let trust = trust_score(&ratings, registered.registration.owner.as_ref());
        let (reason, metadata) = (reason.clone(), metadata.clone());
        let feedback =
            Feedback { id, agent: *agent, service: *service, score: *score, reason, metadata, created_at: now };
        store::trust::insert_feedback(tx.conn(), &feedback).await?;
        store::trust::delete_excess_feedback(tx.conn(), *agent, *service).await?;
        // A service whose feedback moves nothing must not cause changes for the sidecars of others.
        if trust != registered.trust {
            agents::set_trust(tx.conn(), *agent, trust, now).await?;
            store::trust::mark_changed(tx.conn(), *agent).await?;
        }
        let (agent_id, service_id, feedback_id) = (*agent, *service, id);
        let (score, new_trust_score) = (score.points(), trust.points());
        let data = FeedbackReceivedEvent { agent_id, service_id, feedback_id, score, new_trust_score };
        tx.emit(Event { id: event, at: now, data: EventData::FeedbackReceived(data) });
        let response = idempotency.store_response(&mut tx, &trust).await?;
        Ok(tx.commit(response).await?)
    };
    let response = context.store.write("submit_feedback", work).await?;
    context.trust_changed.notify_one();
    Ok(response)
}

/// Lists the feedback about an agent, newest first.
pub async fn list_trust_history(
    context: &Context,
    agent: AgentId,
    page: &Page<FeedbackPosition>,
) -> Result<ListPage<Feedback, FeedbackPosition>, OperationError> {
    let mut read = context.store.read().await?;
    agents::find(read.conn(), agent).await?.ok_or(OperationError::NotFound(NotFound::Agent))?;
    Ok(store::trust::list_feedback(read.conn(), agent, page).await?)
}
