//! What services say of agents, what it amounts to, and of whom sidecars have not been told yet.

use super::{Conn, StoreError, agents::read_owner, row};
use crate::domain::{
    page::{ListPage, Page},
    text::Description,
    trust::{Feedback, Rating, Score},
};
use countersign_identity::{AgentId, Timestamp};
use sqlx::any::AnyRow;

/// How a weight or a mean is stored: in millionths.
const MILLION: f64 = 1e6;

/// Appends a feedback to the history.
pub async fn insert_feedback(conn: &mut Conn, feedback: &Feedback) -> Result<(), StoreError> {
    let sql = "INSERT INTO trust_feedback (id, agent_id, service_id, score, reason, metadata, created_at) \
               VALUES ($1, $2, $3, $4, $5, $6, $7)";
    sqlx::query(sql)
        .bind(feedback.id.to_string())
        .bind(feedback.agent.to_string())
        .bind(feedback.service.to_string())
        .bind(feedback.score.millionths())
        .bind(feedback.reason.as_str())
        .bind(feedback.metadata.to_json())
        .bind(feedback.created_at.micros())
        .execute(conn)
        .await?;
    Ok(())
}

/// What was said of an agent, newest first.
pub async fn history(conn: &mut Conn, agent: AgentId, page: Page) -> Result<ListPage<Feedback>, StoreError> {
    let count = "SELECT CAST(COUNT(*) AS BIGINT) AS total FROM trust_feedback WHERE agent_id = $1";
    let total = row::total(&sqlx::query(count).bind(agent.to_string()).fetch_one(&mut *conn).await?)?;
    let sql = "SELECT id, agent_id, service_id, score, reason, metadata, created_at FROM trust_feedback \
               WHERE agent_id = $1 ORDER BY created_at DESC, id DESC LIMIT $2 OFFSET $3";
    let query = sqlx::query(sql).bind(agent.to_string()).bind(page.limit).bind(page.offset);
    let items = query.fetch_all(conn).await?.iter().map(read_feedback).collect::<Result<_, _>>()?;
    Ok(ListPage { items, total })
}

/// What each service's feedback about an agent amounts to.
pub async fn ratings(conn: &mut Conn, agent: AgentId) -> Result<Vec<Rating>, StoreError> {
    let sql = "SELECT o.service_id, s.owner_issuer, s.owner_subject, o.weight, o.mean, o.rated_at \
               FROM trust_opinions o JOIN services s ON s.id = o.service_id WHERE o.agent_id = $1 ORDER BY o.service_id";
    sqlx::query(sql).bind(agent.to_string()).fetch_all(conn).await?.iter().map(read_opinion).collect()
}

/// Keeps what a service's feedback about an agent amounts to now.
pub async fn upsert_rating(conn: &mut Conn, agent: AgentId, rating: &Rating) -> Result<(), StoreError> {
    let sql = "INSERT INTO trust_opinions (agent_id, service_id, weight, mean, rated_at) VALUES ($1, $2, $3, $4, $5) \
               ON CONFLICT (agent_id, service_id) DO UPDATE SET weight = excluded.weight, mean = excluded.mean, \
               rated_at = excluded.rated_at";
    sqlx::query(sql)
        .bind(agent.to_string())
        .bind(rating.service.to_string())
        .bind(millionths(rating.weight))
        .bind(millionths(rating.mean))
        .bind(rating.rated_at.micros())
        .execute(conn)
        .await?;
    Ok(())
}

/// Marks an agent whose trust changed. The row is locked also if it is there, so that whoever takes the marks
/// waits for the change that this one speaks of.
pub async fn mark(conn: &mut Conn, agent: AgentId) -> Result<(), StoreError> {
    let sql = "INSERT INTO trust_marks (agent_id) VALUES ($1) ON CONFLICT (agent_id) DO UPDATE SET agent_id = excluded.agent_id";
    sqlx::query(sql).bind(agent.to_string()).execute(conn).await?;
    Ok(())
}

/// Whether any agent is marked.
pub async fn any_marks(conn: &mut Conn) -> Result<bool, StoreError> {
    Ok(sqlx::query("SELECT 1 AS marked FROM trust_marks LIMIT 1").fetch_optional(conn).await?.is_some())
}

/// Takes all marks away; gives the agents.
pub async fn take_marks(conn: &mut Conn) -> Result<Vec<AgentId>, StoreError> {
    let rows = sqlx::query("DELETE FROM trust_marks RETURNING agent_id").fetch_all(conn).await?;
    rows.iter().map(|found| row::parse(found, "agent_id")).collect()
}

fn read_feedback(found: &AnyRow) -> Result<Feedback, StoreError> {
    Ok(Feedback {
        id: row::parse(found, "id")?,
        agent: row::parse(found, "agent_id")?,
        service: row::parse(found, "service_id")?,
        score: Score::from_millionths(row::get(found, "score")?).map_err(|_| StoreError::Corrupt("score"))?,
        reason: row::convert::<Description>(found, "reason")?,
        metadata: row::metadata(found)?,
        created_at: row::instant(found, "created_at")?,
    })
}

fn read_opinion(found: &AnyRow) -> Result<Rating, StoreError> {
    Ok(Rating {
        service: row::parse(found, "service_id")?,
        owner: read_owner(found)?.ok_or(StoreError::Corrupt("owner_issuer"))?,
        weight: from_millionths(row::get(found, "weight")?),
        mean: from_millionths(row::get(found, "mean")?),
        rated_at: Timestamp::from_micros(row::get(found, "rated_at")?),
    })
}

#[expect(clippy::cast_possible_truncation, reason = "at most a hundred, in millionths")]
fn millionths(number: f64) -> i64 {
    (number * MILLION).round() as i64
}

#[expect(clippy::cast_precision_loss, reason = "at most a hundred, in millionths")]
fn from_millionths(number: i64) -> f64 {
    number as f64 / MILLION
}
