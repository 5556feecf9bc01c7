//! What challenges, logins and the issue of tokens read, each with one statement for all requests that wait: an agent waits for every
//! statement of its login.

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

/// The parameters of the number, the agent, the service and the challenge of a query in [`READ_FOR_LOGINS`].
macro_rules! login_row {
    () => {
        "(CAST($1 AS BIGINT), CAST($2 AS TEXT), CAST($3 AS TEXT), CAST($4 AS TEXT))"
    };
}

/// The parameters of an agent, the audience of its token and its challenge in [`READ_FOR_ISSUE`].
macro_rules! issue_row {
    () => {
        "(CAST($4 AS TEXT), CAST($5 AS TEXT), CAST($6 AS TEXT))"
    };
}

statements! { STATEMENTS:
    /// Deleted agents and services do not count. The number of a row that is not needed is 0.
    READ_FOR_LOGINS = concat!(
        "SELECT column1 AS number, (SELECT status FROM agents WHERE id = column2 AND deleted_at IS NULL) AS status, \
         (SELECT public_key FROM agents WHERE id = column2 AND deleted_at IS NULL) AS public_key, \
         CAST((SELECT COUNT(*) FROM services WHERE id = column3 AND deleted_at IS NULL) AS BIGINT) AS services, \
         CAST((SELECT COUNT(*) FROM sessions WHERE challenge_id = column4) AS BIGINT) AS uses, ", feed::position_columns!(),
        ", restored_at, d.master_key_fingerprint AS master_key FROM feed JOIN deployment d ON d.id = feed.id, (VALUES ", login_row!(),
        ") AS v WHERE feed.id = 1 AND column1 > 0 ORDER BY column1"
    );
    /// Counts audiences and, for a login, sessions. Counts only up to the quotas `$2` and `$3`.
    READ_FOR_ISSUE = concat!(
        "SELECT column1 AS agent_id, CAST((SELECT COUNT(*) FROM (SELECT 1 AS one FROM token_audiences \
         WHERE agent_id = column1 AND service_id <> column2 AND expires_at > $1 LIMIT $2 + 0) others) AS BIGINT) AS audiences, \
         CAST((SELECT COUNT(*) FROM sessions WHERE challenge_id = column3) AS BIGINT) AS uses, \
         CAST((SELECT COUNT(*) FROM (SELECT 1 AS one FROM sessions WHERE agent_id = column1 AND ended_at IS NULL \
         AND expires_at > $1 AND column3 <> '' LIMIT $3 + 0) live) AS BIGINT) AS sessions FROM (VALUES ", issue_row!(), ") AS v WHERE column1 <> ''"
    );
}

const LOGINS: RowListStatement = RowListStatement { sql: READ_FOR_LOGINS, row: login_row!() };
const ISSUE: RowListStatement = RowListStatement { sql: READ_FOR_ISSUE, row: issue_row!() };

/// A challenge that an agent asks for, or its login with a challenge.
#[derive(Debug, Clone)]
pub struct LoginQuery {
    /// The agent.
    pub agent: AgentId,
    /// The service that it names, if any.
    pub service: Option<ServiceId>,
    /// The id of the challenge or assertion of a login; `None` for a new challenge.
    pub challenge: Option<String>,
}

/// What a challenge and the verification of a signed challenge depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginBasis {
    /// The status of the agent; `None` if it does not exist or is deleted.
    pub status: Option<AgentStatus>,
    /// The public key of the agent as stored.
    public_key: Option<String>,
    /// Whether the named service exists and is not deleted; false if none is named.
    pub has_service: bool,
    /// Whether a session was created with the challenge or assertion.
    pub challenge_is_used: bool,
    /// Challenges from before the last restore of the database are invalid. This is the revision of the restore.
    pub restore_revision: Revision,
    /// The time of the last restore. Client assertions from before it are invalid.
    pub restored_at: Option<Timestamp>,
    /// The fingerprint of the current master key.
    pub master_key: String,
}

impl LoginBasis {
    /// The public key of the agent; `None` if it does not exist or is deleted.
    pub fn public_key(&self) -> Result<Option<P256PublicKey>, StoreError> {
        self.public_key.as_deref().map(agents::parse_key).transpose()
    }
}

/// Reads what challenges and logins depend on, in the order of the queries.
pub async fn read_for_logins(conn: &mut Conn, queries: &[LoginQuery]) -> Result<Vec<LoginBasis>, StoreError> {
    let row = |(number, query): (i64, &LoginQuery)| -> [Parameter; 4] {
        let LoginQuery { agent, service, challenge } = query;
        let service = service.map(|service| service.to_string());
        [number.into(), agent.to_string().into(), service.into(), challenge.clone().into()]
    };
    let read = |row: &AnyRow| {
        let status: Option<String> = row::get(row, "status")?;
        Ok(LoginBasis {
            status: status.map(|text| parse_status(&text).ok_or(StoreError::Corrupt("status"))).transpose()?,
            public_key: row::get(row, "public_key")?,
            has_service: row::get::<i64>(row, "services")? > 0,
            challenge_is_used: row::get::<i64>(row, "uses")? > 0,
            restore_revision: feed::position_from_row(row)?.cutoff,
            restored_at: row::get::<Option<i64>>(row, "restored_at")?.map(Timestamp::from_micros),
            master_key: row::get(row, "master_key")?,
        })
    };
    let rows = LOGINS.fetch_all(conn, &[], (1..).zip(queries).map(row)).await?;
    let bases: Vec<_> = rows.iter().map(read).collect::<Result<_, StoreError>>()?;
    if bases.len() == queries.len() { Ok(bases) } else { Err(StoreError::UnexpectedRowCount("read_for_logins")) }
}

/// Tokens that an agent asks for.
#[derive(Debug, Clone)]
pub struct IssueQuery {
    /// The agent.
    pub agent: AgentId,
    /// The service that the tokens are for; `None` for unbound tokens.
    pub audience: Option<ServiceId>,
    /// The id of the challenge or assertion of a login; `None` for a refresh.
    pub challenge: Option<String>,
}

/// What the issue of tokens depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IssueBasis {
    /// Number of the other audiences for which the agent has live tokens, at most the quota. Deleted services count, because changes
    /// are also written for them: otherwise, one could multiply the audiences of an agent.
    pub other_audiences: i64,
    /// Whether a session was created with the challenge or assertion.
    pub challenge_is_used: bool,
    /// Number of live sessions of the agent, at most the quota; 0 for a refresh.
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
        [agent.to_string().into(), audience_text(*audience).into(), challenge.clone().into()]
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
    [LOGINS, ISSUE].map(RowListStatement::texts).concat()
}
