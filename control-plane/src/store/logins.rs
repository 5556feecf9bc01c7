//! What challenges, logins and the issue of tokens read, each with one statement: an agent waits for every statement of its login.

use super::{
    Conn, StoreError, agents, feed, row,
    row_lists::{Parameter, RowListStatement},
    statements::statements,
    token_audiences::audience_text,
};
use crate::domain::agent::parse_status;
use countersign_identity::{AgentId, AgentStatus, P256PublicKey, Revision, ServiceId, Timestamp};
use sqlx::any::AnyRow;
use std::collections::BTreeMap;

/// Selects the status of the agent `$1`, and the number of services `$2`. Deleted ones do not count.
macro_rules! agent_and_service {
    () => {
        "(SELECT status FROM agents WHERE id = $1 AND deleted_at IS NULL) AS status, \
         CAST((SELECT COUNT(*) FROM services WHERE id = $2 AND deleted_at IS NULL) AS BIGINT) AS services"
    };
}

/// The parameters of an agent, the audience of its token and its challenge in [`READ_FOR_ISSUE`].
macro_rules! issue_row {
    () => {
        "(CAST($4 AS TEXT), CAST($5 AS TEXT), CAST($6 AS TEXT))"
    };
}

statements! { STATEMENTS:
    READ_FOR_CHALLENGE = concat!(
        "SELECT ", agent_and_service!(), ", ", feed::position_columns!(), ", d.master_key_fingerprint AS master_key \
         FROM feed JOIN deployment d ON d.id = feed.id WHERE feed.id = 1"
    );
    READ_FOR_LOGIN = concat!(
        "SELECT ", agent_and_service!(), ", (SELECT public_key FROM agents WHERE id = $1 AND deleted_at IS NULL) AS public_key, \
         CAST((SELECT COUNT(*) FROM sessions WHERE challenge_id = $3) AS BIGINT) AS uses"
    );
    /// Counts audiences and sessions only up to the quotas `$2` and `$3`.
    READ_FOR_ISSUE = concat!(
        "SELECT column1 AS agent_id, CAST((SELECT COUNT(*) FROM (SELECT 1 AS one FROM token_audiences \
         WHERE agent_id = column1 AND service_id <> column2 AND expires_at > $1 LIMIT $2 + 0) others) AS BIGINT) AS audiences, \
         CAST((SELECT COUNT(*) FROM sessions WHERE challenge_id = column3) AS BIGINT) AS uses, \
         CAST((SELECT COUNT(*) FROM (SELECT 1 AS one FROM sessions WHERE agent_id = column1 AND ended_at IS NULL \
         AND expires_at > $1 LIMIT $3 + 0) live) AS BIGINT) AS sessions FROM (VALUES ", issue_row!(), ") AS v WHERE column1 <> ''"
    );
}

const ISSUE: RowListStatement = RowListStatement { sql: READ_FOR_ISSUE, row: issue_row!() };

/// What a challenge depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChallengeBasis {
    /// The status of the agent; `None` if it does not exist or is deleted.
    pub status: Option<AgentStatus>,
    /// Whether the named service exists and is not deleted; false if none is named.
    pub has_service: bool,
    /// Challenges from before the last restore of the database are invalid. This is the revision of the restore.
    pub restore_revision: Revision,
    /// The fingerprint of the current master key.
    pub master_key: String,
}

/// Reads what a challenge for an agent, and for a service if it names one, depends on.
pub async fn read_for_challenge(
    conn: &mut Conn,
    agent: AgentId,
    service: Option<ServiceId>,
) -> Result<ChallengeBasis, StoreError> {
    let query =
        sqlx::query(READ_FOR_CHALLENGE).bind(agent.to_string()).bind(service.map(|service| service.to_string()));
    let row = query.fetch_one(conn).await?;
    Ok(ChallengeBasis {
        status: status_from_row(&row)?,
        has_service: has_service(&row)?,
        restore_revision: feed::position_from_row(&row)?.cutoff,
        master_key: row::get(&row, "master_key")?,
    })
}

/// What the verification of a signed challenge depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginBasis {
    /// The status and the public key of the agent; `None` if it does not exist or is deleted.
    pub agent: Option<(AgentStatus, P256PublicKey)>,
    /// Whether the named service exists and is not deleted; false if none is named.
    pub has_service: bool,
    /// Whether a session was created with the challenge.
    pub challenge_is_used: bool,
}

/// Reads what a login of an agent with a challenge, and for a service if it names one, depends on.
pub async fn read_for_login(
    conn: &mut Conn,
    (agent, challenge): (AgentId, &str),
    service: Option<ServiceId>,
) -> Result<LoginBasis, StoreError> {
    let query = sqlx::query(READ_FOR_LOGIN)
        .bind(agent.to_string())
        .bind(service.map(|service| service.to_string()))
        .bind(challenge);
    let row = query.fetch_one(conn).await?;
    let key: Option<String> = row::get(&row, "public_key")?;
    Ok(LoginBasis {
        agent: status_from_row(&row)?.zip(key.map(|key| agents::parse_key(&key)).transpose()?),
        has_service: has_service(&row)?,
        challenge_is_used: row::get::<i64>(&row, "uses")? > 0,
    })
}

/// Tokens that an agent asks for.
#[derive(Debug, Clone)]
pub struct IssueQuery {
    /// The agent.
    pub agent: AgentId,
    /// The service that the tokens are for; `None` for unbound tokens.
    pub audience: Option<ServiceId>,
    /// The challenge of a login; `None` for a refresh.
    pub challenge: Option<String>,
}

/// What the issue of tokens depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IssueBasis {
    /// Number of the other audiences for which the agent has live tokens, at most the quota. Deleted services count, because changes
    /// are also written for them: otherwise, one could multiply the audiences of an agent.
    pub other_audiences: i64,
    /// Whether a session was created with the challenge.
    pub challenge_is_used: bool,
    /// Number of live sessions of the agent, at most the quota.
    pub live_sessions: i64,
}

/// Reads what the issue of tokens depends on, each to another agent. The quotas are those of audiences and of sessions. The caller must
/// hold the locks on the agents.
pub async fn read_for_issue(
    conn: &mut Conn,
    queries: &[IssueQuery],
    now: Timestamp,
    (audiences, sessions): (u32, u32),
) -> Result<BTreeMap<AgentId, IssueBasis>, StoreError> {
    let fixed = [now.micros(), audiences.into(), sessions.into()].map(Parameter::from);
    let row = |IssueQuery { agent, audience, challenge }: &IssueQuery| {
        [agent.to_string().into(), audience_text(*audience).into(), challenge.clone().unwrap_or_default().into()]
    };
    let read = |row: AnyRow| {
        let basis = IssueBasis {
            other_audiences: row::get(&row, "audiences")?,
            challenge_is_used: row::get::<i64>(&row, "uses")? > 0,
            live_sessions: row::get(&row, "sessions")?,
        };
        Ok((row::parse(&row, "agent_id")?, basis))
    };
    ISSUE.fetch_all(conn, &fixed, queries.iter().map(row)).await?.into_iter().map(read).collect()
}

/// The statements with several rows, for the conformance tests.
#[cfg(test)]
pub(super) fn dynamic_statements() -> Vec<String> {
    ISSUE.texts()
}

fn has_service(row: &AnyRow) -> Result<bool, StoreError> {
    Ok(row::get::<i64>(row, "services")? > 0)
}

fn status_from_row(row: &AnyRow) -> Result<Option<AgentStatus>, StoreError> {
    let status: Option<String> = row::get(row, "status")?;
    status.map(|status| parse_status(&status).ok_or(StoreError::Corrupt("status"))).transpose()
}
