//! `/trust`: feedback of services about agents.

use crate::{
    domain::trust::{Feedback, Score},
    http::api::prelude::*,
    operations::{FeedbackPosition, FeedbackRequest},
};
use countersign_identity::{AgentId, FeedbackId, ServiceId, TrustScore};
use serde::{Deserialize, Serializer};
use serde_json::json;

body! {
    /// Feedback about an agent.
    FeedbackSubmission {
        required "agentId" agent: UnparsedId<AgentId>,
        required "score" score: Score,
        /// Reason for the score, which other services cannot read.
        optional "reason" reason: Description,
        /// Free-form data of the service, which other services cannot read.
        optional "metadata" metadata: Metadata,
    }
}

/// Result of a feedback submission.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FeedbackResponse {
    /// Always true.
    #[schema(example = true)]
    recorded: bool,
    /// The trust score of the agent after this feedback.
    #[schema(value_type = schema::TrustScoreSchema)]
    new_trust_score: TrustScore,
}

type FeedbackPage = PageResponse<FeedbackRecord>;

/// Feedback of a service about an agent.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FeedbackRecord {
    #[schema(value_type = schema::FeedbackIdSchema)]
    id: FeedbackId,
    /// The service that gave the feedback.
    #[schema(value_type = schema::ServiceIdSchema)]
    service_id: ServiceId,
    #[schema(value_type = schema::FeedbackScoreSchema)]
    score: ScoreValue,
    /// Reason for the score; empty for other services than the one that gave the feedback.
    reason: Description,
    /// Free-form data of the service that gave the feedback; empty for other services.
    metadata: Metadata,
    /// Time of the feedback.
    created_at: Rfc3339,
}

/// Serializes a score as a JSON number; an integer if it has no decimals.
struct ScoreValue(Score);

impl Serialize for ScoreValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (integer, fraction) = (self.0.millionths() / 1_000_000, self.0.millionths() % 1_000_000);
        if fraction == 0 { serializer.serialize_i64(integer) } else { serializer.serialize_f64(self.0.points()) }
    }
}

/// Give feedback
///
/// Changes the trust score of the agent immediately. Repeated feedback by the same service has less and less effect. Feedback
/// of services that the agent has not used within 90 days has little effect.
#[utoipa::path(
    post, path = "/trust/feedback", operation_id = "giveFeedback", tag = "Trust",
    params(IdempotencyHeader), request_body = FeedbackSubmission, security(("serviceKey" = [])),
    responses(
        (status = 200, description = "The feedback is recorded", body = FeedbackResponse),
        Errors<(FullKeyAuth, InvalidFeedbackBody, AgentNotFound, InvalidIdempotencyKey)>,
    )
)]
pub async fn submit(
    call: Call,
    idempotency: Result<IdempotencyHeader, ApiError>,
    body: Result<BodyFields, ApiError>,
) -> Result<Json<FeedbackResponse>, ApiError> {
    let key = call.require_full_key().await?;
    let (min, max) = Score::RANGE;
    // An error about a score must contain the range of scores. We add the range to all validation errors of this endpoint.
    let range = [("minimum", json!(min)), ("maximum", json!(max))];
    let FeedbackSubmission { agent, score, reason, metadata } =
        body.and_then(BodyFields::read).map_err(|error| error.with_validation_details(range))?;
    let (reason, metadata) = (reason.unwrap_or_default(), metadata.unwrap_or_default());
    let request = FeedbackRequest { service: key.service, agent: agent.parse()?, score, reason, metadata };
    let present = |trust: &TrustScore| FeedbackResponse { recorded: true, new_trust_score: *trust };
    let reply = IdempotentResponse { request: idempotency?.0, present };
    let body = operations::submit_feedback(call.context(), &call.initiator_for_key(&key), &request, &reply).await?;
    Ok(Json(body))
}

/// Read the feedback about an agent
///
/// Feedback of all services, newest first. The reason and the metadata of feedback by other services are empty.
#[utoipa::path(
    get, path = "/trust/agents/{agent}/history", operation_id = "readTrustHistory", tag = "Trust",
    params(AgentPathParam, PageParameters), security(("serviceKey" = [])),
    responses(
        (status = 200, description = "A page of feedback", body = FeedbackPage),
        Errors<(FullKeyAuth, InvalidPaging, AgentNotFound)>,
    )
)]
pub async fn history(
    call: Call,
    PathParams(agent): PathParams<String>,
    page: Result<Page<FeedbackPosition>, ApiError>,
) -> Result<Json<FeedbackPage>, ApiError> {
    let service = call.require_full_key().await?.service;
    let page = page?;
    let list_page = operations::list_trust_history(call.context(), parse_id(&agent)?, &page).await?;
    Ok(Json(page_response(&page, list_page, |feedback| feedback_record(feedback, service))))
}

/// Converts feedback for a reader. Only the service that gave the feedback can read its reason and metadata.
fn feedback_record(feedback: Feedback, reader: ServiceId) -> FeedbackRecord {
    let Feedback { id, agent: _, service, score, reason, metadata, created_at } = feedback;
    FeedbackRecord {
        id,
        service_id: service,
        score: ScoreValue(score),
        reason: if service == reader { reason } else { Description::default() },
        metadata: if service == reader { metadata } else { Metadata::default() },
        created_at: Rfc3339(created_at),
    }
}
