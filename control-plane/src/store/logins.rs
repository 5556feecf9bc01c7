//! What challenges, logins and refreshes read and write, with as few statements as possible: an agent waits for each of them.

use super::{
    Conn, StoreError, agents,
    assignments::is_of_live_role,
    feed, known_agents,
    outbox::receives_event,
    query::{Parameter, params},
    roles::{self, HeldRole},
    row,
    sessions::{self, session_columns},
    statements::statements,
    token_audiences::{self, audience_text},
};
use crate::domain::{
    agent::status_text,
    change::FeedPosition,
    session::{RefreshToken, Session},
    text::DisplayName,
    webhook::event::EventKind,
};
use countersign_identity::{AgentId, AgentStatus, P256PublicKey, Revision, ServiceId, Timestamp, TrustScore};
use sqlx::any::AnyRow;

/// The condition that an assignment is live at `$3`: it has not expired, and neither its role nor its service is deleted.
macro_rules! is_live {
    () => {
        concat!(
            "(expires_at IS NULL OR expires_at > $3) \
             AND EXISTS (SELECT 1 FROM services s WHERE s.id = assignments.service_id AND s.deleted_at IS NULL) AND ",
            is_of_live_role!()
        )
    };
}

/// Begins a statement that writes a session if its agent still has the state that we read (`$4` to `$7`). It locks the row of the
/// agent, so that other transactions see the audience of the token, see [`token_audiences`]. The row of the agent is written even
/// if the session is not.
macro_rules! with_unchanged_agent {
    ($write:expr) => {
        concat!(
            "WITH agent AS (UPDATE agents SET last_seen_at = $1, last_service_id = $2 WHERE id = $3 AND deleted_at IS NULL \
             AND status = $4 AND cutoff = $5 AND trust = $6 AND last_service_id IS NOT DISTINCT FROM $7 RETURNING id)",
            $write
        )
    };
}

statements! { STATEMENTS:
    /// The service of the last login if the agent holds a role there. Otherwise, the service at which the agent holds a role, if
    /// there is only one: a second row shows that there are more.
    FIND_DEFAULT_SERVICE = concat!(
        "SELECT COALESCE((SELECT service_id FROM assignments WHERE agent_id = $1 \
         AND service_id = (SELECT last_service_id FROM agents WHERE id = $2) AND ", is_live!(), " LIMIT 1), \
         (SELECT CASE WHEN COUNT(*) = 1 THEN MIN(service_id) END FROM (SELECT DISTINCT service_id FROM assignments \
         WHERE agent_id = $1 AND ", is_live!(), " LIMIT 2) services)) AS service_id"
    );
    /// Deleted agents and services do not count. Returns a row for each role that the agent holds at the service, or one row
    /// without a role. It joins few tables, because each one costs time, even a small one.
    READ_FOR_LOGIN = concat!(
        "SELECT f.revision, f.floor, COALESCE(f.restored_revision, 0) AS cutoff, f.restored_at, \
         g.name AS agent_name, g.public_key, g.owner_issuer, g.status, g.cutoff AS agent_cutoff, g.trust, g.last_seen_at, g.last_service_id, \
         (SELECT 1 FROM services WHERE id = $2 AND deleted_at IS NULL) AS has_service, \
         (SELECT 1 FROM sessions WHERE challenge_id = $3) AS challenge_is_used, \
         (SELECT expires_at FROM token_audiences WHERE agent_id = $1 AND service_id = $2) AS audience_recorded_until, \
         (SELECT contacted_at FROM known_agents WHERE agent_id = $1 AND service_id = $2) AS contacted_at, \
         (SELECT 1 FROM webhook_targets t WHERE ", receives_event!("$5", "$2"), " LIMIT 1) AS has_targets, \
         r.id, r.name, r.permissions, r.created_revision, a.expires_at \
         FROM feed f LEFT JOIN agents g ON g.id = $1 AND g.deleted_at IS NULL \
         LEFT JOIN assignments a ON a.agent_id = $1 AND a.service_id = $2 AND (a.expires_at IS NULL OR a.expires_at > $4) \
         LEFT JOIN roles r ON r.id = a.role_id AND r.deleted_at IS NULL WHERE f.id = 1"
    );
}

statements! { POSTGRES_STATEMENTS:
    BEGIN_IF_UNCHANGED = with_unchanged_agent!(concat!(
        " INSERT INTO sessions (challenge_id, ", session_columns!(), ") SELECT $8, $9, $10, $11, $12, CAST($13 AS BIGINT), \
         CAST($14 AS BIGINT), CAST($15 AS BIGINT), CAST($16 AS BIGINT), $17, $18, $19 FROM agent ON CONFLICT (challenge_id) DO NOTHING"
    ));
    REFRESH_IF_UNCHANGED = with_unchanged_agent!(
        " UPDATE sessions SET refresh_hash = $8, audiences = $9 FROM agent \
         WHERE sessions.id = $10 AND agent_id = agent.id AND refresh_hash = $11 AND ended_at IS NULL"
    );
}

/// A login or refresh, or the challenge for a login.
#[derive(Debug, Clone)]
pub struct LoginQuery {
    pub agent: AgentId,
    /// The service that the request names, or that the session is bound to.
    pub service: Option<ServiceId>,
    /// The id of the challenge or assertion of a login.
    pub challenge: Option<String>,
}

/// What logins and refreshes depend on. All of it is of the same revision, except which service is the default.
#[derive(Debug, Clone, PartialEq)]
pub struct LoginBasis {
    /// The time of the login: roles and tokens that have expired at this time do not count.
    pub at: Timestamp,
    pub position: FeedPosition,
    /// The time of the last restore. Client assertions from before it are invalid.
    pub restored_at: Option<Timestamp>,
    /// The agent; `None` if it does not exist or is deleted.
    pub agent: Option<LoginAgent>,
    /// The service that tokens are for: the service of the query, or else the default service of the agent. `None` for unbound tokens.
    pub audience: Option<ServiceId>,
    /// Whether the service `audience` exists and is not deleted.
    pub has_service: bool,
    /// Whether a session was created with the challenge or assertion.
    pub challenge_is_used: bool,
    /// Until when the audience is recorded for changes of the agent.
    pub audience_recorded_until: Option<Timestamp>,
    /// The time of the latest recorded contact between the agent and the audience.
    pub contacted_at: Option<Timestamp>,
    /// Whether a webhook target receives the event of a login.
    pub has_targets: bool,
    /// The roles that the agent holds at the audience.
    pub roles: Vec<HeldRole>,
}

/// What logins and refreshes need of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginAgent {
    pub id: AgentId,
    pub name: DisplayName,
    pub key: P256PublicKey,
    /// Whether the agent belongs to a human user.
    pub has_owner: bool,
    /// Whether the agent may authenticate.
    pub status: AgentStatus,
    /// Tokens and sessions below this revision are invalid.
    pub cutoff: Revision,
    pub trust: TrustScore,
    /// When the agent last authenticated.
    pub last_seen_at: Option<Timestamp>,
    /// The service of the agent's last login.
    pub last_service: Option<ServiceId>,
}

/// Reads what a login or refresh depends on. Whoever issues a token must hold the lock on the agent, or must write the session only
/// if the agent is unchanged.
pub async fn read(conn: &mut Conn, query: &LoginQuery, at: Timestamp) -> Result<LoginBasis, StoreError> {
    let LoginQuery { agent, service, challenge } = query;
    let audience = match *service {
        Some(service) => Some(service),
        None => find_default_service(conn, *agent, at).await?,
    };
    let parameters = params![agent, audience_text(audience), challenge, at, EventKind::Authenticated];
    let rows = conn.rows(READ_FOR_LOGIN, parameters).await?;
    let row = rows.first().ok_or(StoreError::UnexpectedRowCount("read_for_login"))?;
    let mut roles = rows.iter().filter_map(|row| held_role(row).transpose()).collect::<Result<Vec<_>, _>>()?;
    roles.sort_by_key(|role| role.definition.id);
    let is_there = |column| row::get::<Option<i32>>(row, column).map(|one| one.is_some());
    Ok(LoginBasis {
        at,
        position: feed::position_from_row(row)?,
        restored_at: row::optional_timestamp(row, "restored_at")?,
        agent: login_agent(row, *agent)?,
        audience,
        has_service: is_there("has_service")?,
        challenge_is_used: is_there("challenge_is_used")?,
        audience_recorded_until: row::optional_timestamp(row, "audience_recorded_until")?,
        contacted_at: row::optional_timestamp(row, "contacted_at")?,
        has_targets: is_there("has_targets")?,
        roles,
    })
}

/// The service that the tokens of an agent are for if it names none.
async fn find_default_service(conn: &mut Conn, agent: AgentId, at: Timestamp) -> Result<Option<ServiceId>, StoreError> {
    let service = |row: &AnyRow| row::parse_optional(row, "service_id");
    conn.read_row(FIND_DEFAULT_SERVICE, params![agent, agent, at], service).await
}

/// The agent of a row. `None` if its columns are NULL, because there is no agent.
fn login_agent(row: &AnyRow, id: AgentId) -> Result<Option<LoginAgent>, StoreError> {
    let Some(cutoff) = row::get::<Option<i64>>(row, "agent_cutoff")? else { return Ok(None) };
    Ok(Some(LoginAgent {
        id,
        name: row::convert(row, "agent_name")?,
        key: row::public_key(row, "public_key")?,
        has_owner: row::get::<Option<String>>(row, "owner_issuer")?.is_some(),
        status: agents::status_from_row(row)?,
        cutoff: Revision::new(cutoff),
        trust: agents::trust_from_row(row)?,
        last_seen_at: row::optional_timestamp(row, "last_seen_at")?,
        last_service: row::parse_optional(row, "last_service_id")?,
    }))
}

/// What the database records about an issued token, besides its session.
#[derive(Debug, Clone, Copy)]
pub struct IssueRecord {
    /// When the token was issued, which is also when the agent was last seen.
    pub issued_at: Timestamp,
    /// The service of the agent's last login, this one included.
    pub last_service: Option<ServiceId>,
    /// The audience of the token.
    pub audience: Option<ServiceId>,
    /// Until when to record the audience for changes of the agent; `None` if it is already recorded for long enough.
    pub recorded_until: Option<Timestamp>,
    /// The service with which the agent has a new contact to record.
    pub contact: Option<ServiceId>,
}

impl IssueRecord {
    /// Whether the record changes only the row of the agent.
    pub const fn changes_only_the_agent(&self) -> bool {
        self.recorded_until.is_none() && self.contact.is_none()
    }
}

/// Records a token of an agent. The caller must hold the lock on the agent.
pub async fn record_issue(conn: &mut Conn, agent: AgentId, record: &IssueRecord) -> Result<(), StoreError> {
    let IssueRecord { issued_at, last_service, audience, recorded_until, contact } = *record;
    if let Some(until) = recorded_until {
        token_audiences::record(conn, agent, audience, until).await?;
    }
    if let Some(service) = contact {
        known_agents::record_contact(conn, agent, service, issued_at).await?;
    }
    agents::set_last_seen(conn, agent, last_service, issued_at).await
}

/// Inserts the session of a login, and records its token in the row of the agent (the record must need no other row). Returns false
/// and inserts nothing if the agent has changed since it was read, or if another session has begun with the challenge or assertion.
pub async fn begin_if_unchanged(
    conn: &mut Conn,
    agent: &LoginAgent,
    record: &IssueRecord,
    session: &Session,
    challenge: &str,
) -> Result<bool, StoreError> {
    let parameters = unchanged_agent(agent, record).into_iter().chain(sessions::insertion(session, challenge));
    conn.changes_row(BEGIN_IF_UNCHANGED, parameters).await
}

/// Replaces the current refresh token of a live session and the audiences of its tokens, and records the new access token in the
/// row of the agent (the record must need no other row). Returns false if the agent or the session has changed since it was read.
pub async fn refresh_if_unchanged(
    conn: &mut Conn,
    agent: &LoginAgent,
    record: &IssueRecord,
    session: &Session,
    used: &RefreshToken,
    next: &RefreshToken,
) -> Result<bool, StoreError> {
    let replacement = sessions::replacement(used, next, &session.audiences);
    conn.changes_row(REFRESH_IF_UNCHANGED, unchanged_agent(agent, record).into_iter().chain(replacement)).await
}

/// The parameters of `with_unchanged_agent`.
fn unchanged_agent(agent: &LoginAgent, record: &IssueRecord) -> [Parameter; 7] {
    let LoginAgent { id, status, cutoff, trust, last_service, .. } = agent;
    params![record.issued_at, record.last_service, id, status_text(*status), cutoff, trust, last_service]
}

/// Reads a role. `None` if its columns are NULL, because the agent holds no role or the role is deleted.
fn held_role(row: &AnyRow) -> Result<Option<HeldRole>, StoreError> {
    let id: Option<String> = row::get(row, "id")?;
    id.map(|_| roles::held_from_row(row)).transpose()
}
