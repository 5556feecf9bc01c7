//! The tables of feedback on agents, of ratings by service, and of agents whose new trust score was not yet sent to sidecars.

use super::{
    Conn, StoreError,
    agents::owner_from_row,
    known_agents,
    query::{params, text_or_empty},
    retention::RowsById,
    row,
    statements::statements,
};
use crate::domain::{
    page::{ListPage, NumberThen, Page},
    text::Description,
    trust::{Feedback, Rating, RatingBySource, Score},
};
use countersign_identity::{AgentId, FeedbackId, ServiceId, Timestamp};
use sqlx::any::AnyRow;
use std::collections::BTreeSet;

statements! { STATEMENTS:
    INSERT_FEEDBACK = "INSERT INTO trust_feedback (id, agent_id, service_id, score, reason, metadata, created_at) \
         VALUES ($1, $2, $3, $4, $5, $6, $7)";
    /// Ids sort by creation time. The innermost SELECT finds the newest feedback to delete.
    DELETE_EXCESS_FEEDBACK = "DELETE FROM trust_feedback WHERE id IN (SELECT id FROM trust_feedback \
         WHERE agent_id = $1 AND service_id = $2 AND id <= (SELECT id FROM trust_feedback \
         WHERE agent_id = $1 AND service_id = $2 ORDER BY id DESC LIMIT 1 OFFSET $3) ORDER BY id LIMIT $4 + 0)";
    OLDEST_FEEDBACK = "SELECT MIN(id) AS id FROM trust_feedback WHERE id >= $1";
    DELETE_FEEDBACK_BEFORE =
        "DELETE FROM trust_feedback WHERE id IN (SELECT id FROM trust_feedback WHERE id >= $1 AND id < $2 ORDER BY id LIMIT $3 + 0)";
    COUNT_FEEDBACK = "SELECT CAST(COUNT(*) AS BIGINT) AS total FROM (SELECT 1 AS one FROM trust_feedback WHERE agent_id = $1 \
         LIMIT $2 + 0) counted";
    LIST_FEEDBACK = "SELECT id, agent_id, service_id, score, reason, metadata, created_at FROM trust_feedback \
         WHERE agent_id = $1 AND (created_at, id) < ($2, $3) ORDER BY created_at DESC, id DESC LIMIT $4 + 0 OFFSET $5";
    FIND_RATING = "SELECT service_id, weight, mean, rated_at FROM trust_ratings WHERE agent_id = $1 AND service_id = $2";
    LIST_RATINGS = "SELECT o.service_id, s.owner_issuer, s.owner_subject, o.weight, o.mean, o.rated_at, \
         CAST(CASE WHEN k.contacted_at > $2 THEN 1 ELSE 0 END AS BIGINT) AS is_known \
         FROM trust_ratings o JOIN services s ON s.id = o.service_id \
         LEFT JOIN known_agents k ON k.agent_id = o.agent_id AND k.service_id = o.service_id \
         WHERE o.agent_id = $1 ORDER BY o.service_id";
    UPSERT_RATING = "INSERT INTO trust_ratings (agent_id, service_id, weight, mean, rated_at) VALUES ($1, $2, $3, $4, $5) \
         ON CONFLICT (agent_id, service_id) DO UPDATE SET weight = excluded.weight, mean = excluded.mean, \
         rated_at = excluded.rated_at";
    DELETE_RATING = "DELETE FROM trust_ratings WHERE agent_id = $1 AND service_id = $2";
    MARK_CHANGED_AGENT = "INSERT INTO changed_trust_scores (agent_id) VALUES ($1) ON CONFLICT (agent_id) DO UPDATE SET agent_id = excluded.agent_id";
    ANY_CHANGED_AGENT = "SELECT 1 AS marked FROM changed_trust_scores LIMIT 1";
    TAKE_CHANGED_AGENTS = "DELETE FROM changed_trust_scores WHERE agent_id IN (SELECT agent_id FROM changed_trust_scores \
         WHERE agent_id > $1 ORDER BY agent_id LIMIT $2 + 0) RETURNING agent_id";
}

/// The weights and means of ratings are stored in millionths.
const MILLION: f64 = 1e6;

/// Inserts new feedback.
pub async fn insert_feedback(conn: &mut Conn, feedback: &Feedback) -> Result<(), StoreError> {
    let Feedback { id, agent, service, score, reason, metadata, created_at } = feedback;
    let parameters = params![id, agent, service, score.millionths(), reason, metadata.to_json(), created_at];
    conn.apply(INSERT_FEEDBACK, parameters).await
}

/// How many feedbacks of a service about an agent we keep. The rating also contains the effect of deleted ones on the trust score.
pub const MAX_KEPT_FEEDBACK: i64 = 1000;

/// How many feedbacks one new feedback deletes at most, so that it is fast.
const MAX_DELETED_FEEDBACK: i64 = 10;

/// If there are more than [`MAX_KEPT_FEEDBACK`] feedbacks of a service about an agent, deletes a few of the oldest.
pub async fn delete_excess_feedback(conn: &mut Conn, agent: AgentId, service: ServiceId) -> Result<(), StoreError> {
    conn.apply(DELETE_EXCESS_FEEDBACK, params![agent, service, MAX_KEPT_FEEDBACK, MAX_DELETED_FEEDBACK]).await
}

/// The history of feedback.
pub const FEEDBACK: RowsById = RowsById { oldest: OLDEST_FEEDBACK, delete: DELETE_FEEDBACK_BEFORE };

/// The position of feedback in a list: the time in microseconds, then the id.
pub type FeedbackPosition = NumberThen<FeedbackId>;

/// Lists feedback on an agent, newest first.
pub async fn list_feedback(
    conn: &mut Conn,
    agent: AgentId,
    page: &Page<FeedbackPosition>,
) -> Result<ListPage<Feedback, FeedbackPosition>, StoreError> {
    let total = conn.count_items(COUNT_FEEDBACK, params![agent]).await?;
    let after = page.after.as_ref();
    let (time, id) = after.map_or((i64::MAX, FeedbackId::from_bits(u128::MAX)), |after| (after.number, after.then));
    let position = |feedback: &Feedback| NumberThen { number: feedback.created_at.micros(), then: feedback.id };
    conn.list_page(LIST_FEEDBACK, params![agent, time, id], page, total, feedback_from_row, position).await
}

pub async fn find_rating(conn: &mut Conn, agent: AgentId, service: ServiceId) -> Result<Option<Rating>, StoreError> {
    conn.find_row(FIND_RATING, params![agent, service], rating_from_row).await
}

/// Lists the rating of an agent by each service that gave feedback, ordered by service.
pub async fn list_ratings(conn: &mut Conn, agent: AgentId, now: Timestamp) -> Result<Vec<RatingBySource>, StoreError> {
    conn.list_rows(LIST_RATINGS, params![agent, known_agents::forgotten_until(now)], rating_by_source_from_row).await
}

/// Inserts or replaces the rating of an agent by a service.
pub async fn upsert_rating(conn: &mut Conn, agent: AgentId, rating: &Rating) -> Result<(), StoreError> {
    let Rating { service, weight, mean, rated_at } = rating;
    conn.apply(UPSERT_RATING, params![agent, service, millionths(*weight), millionths(*mean), rated_at]).await
}

pub async fn delete_rating(conn: &mut Conn, agent: AgentId, service: ServiceId) -> Result<(), StoreError> {
    conn.apply(DELETE_RATING, params![agent, service]).await
}

/// Marks an agent whose trust score must be sent to sidecars. Locks the mark even if it exists. So a concurrent
/// [`take_changed_agents`] waits for this transaction, and sends the new score.
pub async fn mark_changed(conn: &mut Conn, agent: AgentId) -> Result<(), StoreError> {
    conn.apply(MARK_CHANGED_AGENT, params![agent]).await
}

/// Whether the trust score of any agent must be sent to sidecars.
pub async fn has_changed_agents(conn: &mut Conn) -> Result<bool, StoreError> {
    conn.has_row(ANY_CHANGED_AGENT, params![]).await
}

/// Takes up to `limit` agents whose trust score must be sent to sidecars, in the order of their ids, above the agent `after`.
pub async fn take_changed_agents(
    conn: &mut Conn,
    after: Option<AgentId>,
    limit: i64,
) -> Result<Vec<AgentId>, StoreError> {
    let parameters = params![text_or_empty(after), limit];
    let agents: BTreeSet<_> =
        conn.list_rows(TAKE_CHANGED_AGENTS, parameters, |row| row::parse(row, "agent_id")).await?;
    Ok(agents.into_iter().collect())
}

fn feedback_from_row(row: &AnyRow) -> Result<Feedback, StoreError> {
    Ok(Feedback {
        id: row::parse(row, "id")?,
        agent: row::parse(row, "agent_id")?,
        service: row::parse(row, "service_id")?,
        score: Score::from_millionths(row::get(row, "score")?).map_err(|_| StoreError::Corrupt("score"))?,
        reason: row::convert::<Description>(row, "reason")?,
        metadata: row::metadata(row)?,
        created_at: row::timestamp(row, "created_at")?,
    })
}

fn rating_from_row(row: &AnyRow) -> Result<Rating, StoreError> {
    Ok(Rating {
        service: row::parse(row, "service_id")?,
        weight: from_millionths(row::get(row, "weight")?),
        mean: from_millionths(row::get(row, "mean")?),
        rated_at: row::timestamp(row, "rated_at")?,
    })
}

fn rating_by_source_from_row(row: &AnyRow) -> Result<RatingBySource, StoreError> {
    Ok(RatingBySource {
        rating: rating_from_row(row)?,
        owner: owner_from_row(row)?.ok_or(StoreError::Corrupt("owner_issuer"))?,
        is_known: row::number::<u8>(row, "is_known")? == 1,
    })
}

#[expect(clippy::cast_possible_truncation, reason = "the absolute value is at most 100 million")]
fn millionths(number: f64) -> i64 {
    (number * MILLION).round() as i64
}

#[expect(clippy::cast_precision_loss, reason = "the absolute value is at most 100 million")]
fn from_millionths(number: i64) -> f64 {
    number as f64 / MILLION
}
