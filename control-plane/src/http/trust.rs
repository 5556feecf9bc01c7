//! `/trust`: what services say of agents.

use super::{
    body::Fields,
    caller::Presented,
    error::{ApiError, timestamp},
    idempotency::Repeatable,
    ids::{Path, id},
    paging,
    router::AppState,
};
use crate::{
    domain::{
        page::Page,
        text::Description,
        trust::{Feedback, Score},
    },
    operations::{self, FeedbackRequest, Reply},
};
use axum::{Json, extract::State};
use countersign_identity::{ServiceId, TrustScore};
use serde_json::{Value, json};

/// `POST /trust/feedback`
pub async fn submit(
    State(state): State<AppState>,
    presented: Presented,
    repeatable: Result<Repeatable, ApiError>,
    body: Fields,
) -> Result<Json<Value>, ApiError> {
    let key = presented.full_key(&state).await?;
    let (least, most) = Score::RANGE;
    let request = body.parse(|fields| {
        let (agent, score) = (fields.required::<String>("agentId"), fields.required("score"));
        let (reason, metadata) = (fields.optional::<Description>("reason"), fields.optional("metadata"));
        Some((agent?, score?, reason?.unwrap_or_default(), metadata?.unwrap_or_default()))
    });
    // Told with every complaint: who sends a score outside wants to know what is inside.
    let range = [("minimum", json!(least)), ("maximum", json!(most))];
    let (agent, score, reason, metadata) = request.map_err(|error| error.with_details(range))?;
    let request = FeedbackRequest { service: key.service, agent: id(&agent)?, score, reason, metadata };
    let present = |trust: &TrustScore| json!({ "recorded": true, "newTrustScore": trust });
    let reply = Reply { repeat: repeatable?.0, present };
    let body = operations::submit_feedback(&state.context, &presented.author_with(&key), &request, &reply).await?;
    Ok(Json(body))
}

/// `GET /trust/agents/:agentId/history`
pub async fn history(
    State(state): State<AppState>,
    presented: Presented,
    Path(agent): Path<String>,
    page: Result<Page, ApiError>,
) -> Result<Json<Value>, ApiError> {
    let service = presented.full_key(&state).await?.service;
    let page = page?;
    let listed = operations::trust_history(&state.context, id(&agent)?, page).await?;
    Ok(Json(paging::present(page, &listed, |feedback| present(feedback, service))))
}

/// What another service attached is its own affair.
fn present(feedback: &Feedback, reader: ServiceId) -> Value {
    let own = feedback.service == reader;
    json!({
        "id": feedback.id,
        "serviceId": feedback.service,
        "score": number(feedback.score),
        "reason": feedback.reason.as_str(),
        "metadata": if own { feedback.metadata.as_map().clone() } else { serde_json::Map::new() },
        "createdAt": timestamp(feedback.created_at),
    })
}

/// A JSON number, whole where it is whole.
fn number(score: Score) -> Value {
    let (whole, rest) = (score.millionths() / 1_000_000, score.millionths() % 1_000_000);
    if rest == 0 { json!(whole) } else { json!(score.points()) }
}
