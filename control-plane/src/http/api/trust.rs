//! `/trust`: what services say of agents.

use crate::{
    domain::{
        page::Page,
        text::{Description, Metadata},
        trust::{Feedback, Score},
    },
    http::{
        error::{ApiError, Instant},
        openapi::{
            errors::{Body, Errors, FullKey, NoAgent, Paging, Repeated},
            schema::{self, AgentInPath},
        },
        request::{
            body::{
                Fields,
                shape::{Sent, body},
            },
            caller::Presented,
            idempotency::Repeatable,
            ids::{InPath, id},
            paging::{self, Paged},
        },
        state::AppState,
    },
    operations::{self, FeedbackRequest, IdempotentReply},
};
use axum::{Json, extract::State};
use countersign_identity::{AgentId, FeedbackId, ServiceId, TrustScore};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

body! {
    /// What a service says of an agent.
    FeedbackBody {
        required "agentId" agent: Sent<AgentId>,
        required "score" score: Score,
        /// Why; every service can read it.
        optional "reason" reason: Description,
        /// What the service attaches; no other service can read it.
        optional "metadata" metadata: Metadata,
    }
}

/// Feedback was taken down.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Recorded {
    /// Always true.
    #[schema(example = true)]
    recorded: bool,
    /// How much the agent is trusted now.
    #[schema(value_type = schema::TrustScore)]
    new_trust_score: TrustScore,
}

/// A page of a listing.
type FeedbackPage = Paged<FeedbackRecord>;

/// What a service said of an agent.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FeedbackRecord {
    #[schema(value_type = schema::FeedbackId)]
    id: FeedbackId,
    /// Who said it.
    #[schema(value_type = schema::ServiceId)]
    service_id: ServiceId,
    #[schema(value_type = schema::Score)]
    score: Points,
    #[schema(value_type = schema::Description)]
    reason: String,
    /// What the service attached; empty if that was another service.
    #[schema(value_type = schema::Metadata)]
    metadata: Map<String, Value>,
    /// When it was said.
    #[schema(value_type = schema::Instant)]
    created_at: Instant,
}

/// A score as a JSON number, whole where it is whole.
struct Points(Score);

impl Serialize for Points {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (whole, rest) = (self.0.millionths() / 1_000_000, self.0.millionths() % 1_000_000);
        if rest == 0 { serializer.serialize_i64(whole) } else { serializer.serialize_f64(self.0.points()) }
    }
}

/// Give feedback
///
/// Counts at once, and moves the agent's trust score the less the more this service has said already.
#[utoipa::path(
    post, path = "/trust/feedback", operation_id = "giveFeedback", tag = "Trust",
    params(Repeatable), request_body = FeedbackBody, security(("serviceKey" = [])),
    responses(
        (status = 200, description = "The feedback is taken down", body = Recorded),
        Errors<(FullKey, Body, NoAgent, Repeated)>,
    )
)]
pub async fn submit(
    State(state): State<AppState>,
    presented: Presented,
    repeatable: Result<Repeatable, ApiError>,
    body: Result<Fields, ApiError>,
) -> Result<Json<Recorded>, ApiError> {
    let key = presented.full_key(&state).await?;
    let (least, most) = Score::RANGE;
    // Told with every complaint: who sends a score outside wants to know what is inside.
    let range = [("minimum", json!(least)), ("maximum", json!(most))];
    let FeedbackBody { agent, score, reason, metadata } =
        body.and_then(Fields::read).map_err(|error| error.about_fields(range))?;
    let (reason, metadata) = (reason.unwrap_or_default(), metadata.unwrap_or_default());
    let request = FeedbackRequest { service: key.service, agent: agent.id()?, score, reason, metadata };
    let present = |trust: &TrustScore| Recorded { recorded: true, new_trust_score: *trust };
    let reply = IdempotentReply { request: repeatable?.0, present };
    let body = operations::submit_feedback(&state.context, &presented.author_with(&key), &request, &reply).await?;
    Ok(Json(body))
}

/// Read what was said of an agent
///
/// By all services, the latest first.
#[utoipa::path(
    get, path = "/trust/agents/{agent}/history", operation_id = "readTrustHistory", tag = "Trust",
    params(AgentInPath, Page), security(("serviceKey" = [])),
    responses(
        (status = 200, description = "A page of feedback", body = FeedbackPage),
        Errors<(FullKey, Paging, NoAgent)>,
    )
)]
pub async fn history(
    State(state): State<AppState>,
    presented: Presented,
    InPath(agent): InPath<String>,
    page: Result<Page, ApiError>,
) -> Result<Json<FeedbackPage>, ApiError> {
    let service = presented.full_key(&state).await?.service;
    let page = page?;
    let listed = operations::trust_history(&state.context, id(&agent)?, page).await?;
    Ok(Json(paging::present(page, listed, |feedback| present(feedback, service))))
}

/// What another service attached is its own affair.
fn present(feedback: Feedback, reader: ServiceId) -> FeedbackRecord {
    let Feedback { id, agent: _, service, score, reason, metadata, created_at } = feedback;
    FeedbackRecord {
        id,
        service_id: service,
        score: Points(score),
        reason: reason.to_string(),
        metadata: if service == reader { metadata.as_map().clone() } else { Map::new() },
        created_at: Instant(created_at),
    }
}
