//! Feedback of services about agents, and the trust scores that result from it.

use super::{
    Context, IdempotentResponse, OperationError,
    find::{find_agent, find_service, lock_agent},
};
use crate::{
    domain::{
        audit::Initiator,
        change::Change,
        page::{ListPage, Page},
        text::{Description, Metadata},
        trust::{Feedback, Rating, Score, remove_excess_ratings, trust_score},
        webhook::event::{Event, EventData, FeedbackReceivedEvent},
    },
    store::{WriteTransaction, agents, trust},
};
use countersign_identity::{AgentId, EventId, FeedbackId, ServiceId, TrustScore};
use serde::{Serialize, de::DeserializeOwned};

pub use crate::store::trust::FeedbackPosition;

#[derive(Debug)]
pub struct FeedbackRequest {
    pub service: ServiceId,
    pub agent: AgentId,
    pub score: Score,
    pub reason: Description,
    /// Free-form JSON from the service.
    pub metadata: Metadata,
}

/// Stores feedback and returns the new trust score of the agent. Locks the row of the agent first, so that feedbacks about the same
/// agent do not overwrite each other's score.
pub async fn submit_feedback<R: Serialize + DeserializeOwned>(
    context: &Context,
    initiator: &Initiator,
    request: &FeedbackRequest,
    reply: &IdempotentResponse<TrustScore, R>,
) -> Result<R, OperationError> {
    // The guard needs no ids here: the API key of the initiator determines the service, and the body names the agent.
    let idempotency = &reply.guard(initiator, &["submit_feedback"]);
    let (id, event) = (context.new_id(FeedbackId::from_bits), context.new_id(EventId::from_bits));
    let FeedbackRequest { service, agent, score, ref reason, ref metadata } = *request;
    let work = async |mut tx: WriteTransaction| {
        if let Some(response) = idempotency.stored_response(&mut tx).await? {
            return Ok(tx.commit(response).await?);
        }
        let now = tx.now();
        let registered = lock_agent(&mut tx, agent).await?;
        // Somebody may have deleted the service since we checked its API key.
        find_service(tx.conn(), service).await?;
        let before = trust::find_rating(tx.conn(), agent, service).await?;
        let rating = before.unwrap_or_else(|| Rating::new(service, now)).with_feedback(score, now);
        trust::upsert_rating(tx.conn(), agent, &rating).await?;
        let mut ratings = trust::list_ratings(tx.conn(), agent, now).await?;
        for rater in remove_excess_ratings(&mut ratings) {
            trust::delete_rating(tx.conn(), agent, rater).await?;
        }
        let new_score = trust_score(&ratings, registered.registration.owner.as_ref());
        let (reason, metadata) = (reason.clone(), metadata.clone());
        let feedback = Feedback { id, agent, service, score, reason, metadata, created_at: now };
        trust::insert_feedback(tx.conn(), &feedback).await?;
        trust::delete_excess_feedback(tx.conn(), agent, service).await?;
        // If the score stays the same, sidecars need no change.
        if new_score != registered.trust {
            agents::set_trust(tx.conn(), agent, new_score, now).await?;
            trust::mark_changed(tx.conn(), agent).await?;
        }
        let data = FeedbackReceivedEvent {
            agent_id: agent,
            service_id: service,
            feedback_id: id,
            score: score.points(),
            new_trust_score: new_score.points(),
        };
        tx.emit(Event { id: event, at: now, data: EventData::FeedbackReceived(data) });
        let response = idempotency.store_response(&mut tx, &new_score).await?;
        Ok::<_, OperationError>(tx.commit(response).await?)
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
    find_agent(read.conn(), agent).await?;
    Ok(trust::list_feedback(read.conn(), agent, page).await?)
}

/// Maximum number of agents in one transaction. It is small, because we insert one row for each audience of an agent's live tokens.
const BATCH_SIZE: i64 = 20;

/// Appends a change to the change feed for every agent whose trust score has changed since the last run. It works in batches, because
/// feedback can be frequent. We go through the agents in the order of their ids, so a run ends even while new feedback keeps arriving.
/// If the score of an agent that we have passed changes again, the next run publishes it.
pub async fn publish_trust_changes(context: &Context) -> Result<(), OperationError> {
    if !trust::has_changed_agents(context.store.read().await?.conn()).await? {
        return Ok(());
    }
    let mut last = None;
    loop {
        let work = async |mut tx: WriteTransaction| {
            let agents = trust::take_changed_agents(tx.conn(), last, BATCH_SIZE).await?;
            for agent in &agents {
                tx.record_change(Change::Trust(*agent));
            }
            Ok::<_, OperationError>(tx.commit(agents.last().copied()).await?)
        };
        last = context.store.write_alone("publish_trust_changes", work).await?;
        if last.is_none() {
            return Ok(());
        }
    }
}
