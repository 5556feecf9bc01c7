//! Which agents are known to which services.
//!
//! An agent becomes known to a service by what it does itself: it names the service in a login or a refresh, or shows the service a
//! valid token for it, which the service then verifies at its verification endpoint. What a service does alone does not count: a
//! service that assigns a role may become the agent's default service, but this does not make the agent known. A login for the
//! default service, which the agent does not name, only renews a contact that still counts. An unbound token (one for no service)
//! does not count, because each service that receives it can present it at others. For `LIMIT $3 + 0`, see [`super::statements`].

use super::{Conn, StoreError, query::params, retention::ExpiringRows, row, statements::statements};
use countersign_identity::{AgentId, ServiceId, Timestamp};
use std::time::Duration;

/// Time for which an agent stays known to a service after the latest contact.
pub const KNOWN_FOR: Duration = Duration::from_hours(90 * 24);

/// We record a contact only if the recorded one is older than this, so that most logins and verifications write nothing.
pub const CONTACT_PRECISION: Duration = Duration::from_hours(24);

statements! { STATEMENTS:
    /// The clocks of replicas differ, but the time of a contact must never go back.
    UPSERT_CONTACT = "INSERT INTO known_agents (agent_id, service_id, contacted_at) VALUES ($1, $2, $3) \
         ON CONFLICT (agent_id, service_id) DO UPDATE SET contacted_at = excluded.contacted_at \
         WHERE known_agents.contacted_at < excluded.contacted_at";
    FIND_CONTACT = "SELECT contacted_at FROM known_agents WHERE agent_id = $1 AND service_id = $2";
    OLDEST_CONTACT = "SELECT MIN(contacted_at) AS oldest FROM known_agents WHERE contacted_at >= $1";
    /// The DELETE repeats the condition of its inner SELECT, because another transaction may record a contact between the SELECT
    /// and the DELETE. Without the unary plus, SQLite would read all these rows again for the DELETE.
    DELETE_FORGOTTEN = "DELETE FROM known_agents WHERE (agent_id, service_id) IN (SELECT agent_id, service_id \
         FROM known_agents WHERE contacted_at >= $1 AND contacted_at <= $2 \
         ORDER BY contacted_at LIMIT $3 + 0) AND +contacted_at <= $2";
}

/// Records a contact between an agent and a service. From now on, the agent is known to the service for [`KNOWN_FOR`].
pub async fn record_contact(
    conn: &mut Conn,
    agent: AgentId,
    service: ServiceId,
    now: Timestamp,
) -> Result<(), StoreError> {
    conn.apply(UPSERT_CONTACT, params![agent, service, now]).await
}

/// Finds the time of the latest recorded contact between an agent and a service.
pub async fn find_contact(
    conn: &mut Conn,
    agent: AgentId,
    service: ServiceId,
) -> Result<Option<Timestamp>, StoreError> {
    conn.find_row(FIND_CONTACT, params![agent, service], |row| row::timestamp(row, "contacted_at")).await
}

pub async fn is_known(conn: &mut Conn, agent: AgentId, service: ServiceId, now: Timestamp) -> Result<bool, StoreError> {
    let contact = find_contact(conn, agent, service).await?;
    Ok(contact.is_some_and(|contacted_at| contacted_at > forgotten_until(now)))
}

/// The time up to which contacts no longer make an agent known.
pub fn forgotten_until(now: Timestamp) -> Timestamp {
    now.saturating_sub(KNOWN_FOR)
}

/// Contacts that no longer make an agent known.
pub const FORGOTTEN: ExpiringRows = ExpiringRows { oldest: OLDEST_CONTACT, delete: DELETE_FORGOTTEN, kept: KNOWN_FOR };
