//! Say how an agent behaved, and read what was said.

use super::{Context, Denied, Missing, Reply};
use crate::{
    domain::{
        audit::Author,
        page::{Listed, Page},
        text::{Description, Metadata},
        trust::{Feedback, Opinion, Score, trust},
        webhook::event::{Event, EventData, FeedbackReceived},
    },
    store::{self, Write, agents, services},
};
use countersign_identity::{AgentId, EventId, FeedbackId, ServiceId, TrustScore};
use serde::{Serialize, de::DeserializeOwned};

/// What a service says.
#[derive(Debug)]
pub struct FeedbackRequest {
    /// Who speaks.
    pub service: ServiceId,
    /// Of whom.
    pub agent: AgentId,
    /// How good it was.
    pub score: Score,
    /// Why.
    pub reason: Description,
    /// What the service attaches.
    pub metadata: Metadata,
}

/// Records a feedback; gives the agent's trust after it. The agent's row is locked first, so feedbacks about one
/// agent come one after the other.
pub async fn submit_feedback<R: Serialize + DeserializeOwned>(
    context: &Context,
    by: &Author,
    request: &FeedbackRequest,
    reply: &Reply<TrustScore, R>,
) -> Result<R, Denied> {
    let once = &reply.to(by, &["submit_feedback"]);
    let (id, event) = (context.fresh(FeedbackId::from_bits), context.fresh(EventId::from_bits));
    let FeedbackRequest { service, agent, score, reason, metadata } = request;
    let work = async |mut tx: Write| {
        if let Some(answer) = once.before(&mut tx).await? {
            return Ok(tx.commit(answer).await?);
        }
        let now = tx.now();
        if !agents::lock(tx.conn(), *agent).await? {
            return Err(Denied::Missing(Missing::Agent));
        }
        let speaker = services::find(tx.conn(), *service).await?.ok_or(Denied::Missing(Missing::Service))?;
        let mut opinions = store::trust::opinions(tx.conn(), *agent).await?;
        let before = opinions.iter().position(|opinion| opinion.service == *service);
        let before = before.map(|position| opinions.swap_remove(position));
        let opinion = before.unwrap_or_else(|| Opinion::first(*service, speaker.owner, now)).heard(*score, now);
        store::trust::put_opinion(tx.conn(), *agent, &opinion).await?;
        opinions.push(opinion);
        let trust = trust(&opinions);
        let (reason, metadata) = (reason.clone(), metadata.clone());
        let feedback =
            Feedback { id, agent: *agent, service: *service, score: *score, reason, metadata, created_at: now };
        store::trust::insert_feedback(tx.conn(), &feedback).await?;
        agents::set_trust(tx.conn(), *agent, trust, now).await?;
        store::trust::mark(tx.conn(), *agent).await?;
        let (agent_id, service_id, feedback_id) = (*agent, *service, id);
        let (score, new_trust_score) = (score.points(), trust.points());
        let data = FeedbackReceived { agent_id, service_id, feedback_id, score, new_trust_score };
        tx.tell(Event { id: event, at: now, data: EventData::FeedbackReceived(data) });
        let answer = once.after(&mut tx, &trust).await?;
        Ok(tx.commit(answer).await?)
    };
    let answer = context.store.write("submit_feedback", work).await?;
    context.trust_marked.notify_one();
    Ok(answer)
}

/// What was said of an agent, newest first.
pub async fn trust_history(context: &Context, agent: AgentId, page: Page) -> Result<Listed<Feedback>, Denied> {
    let mut read = context.store.read().await?;
    agents::find(read.conn(), agent).await?.ok_or(Denied::Missing(Missing::Agent))?;
    Ok(store::trust::history(read.conn(), agent, page).await?)
}
