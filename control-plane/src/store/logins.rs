//! What challenges and logins read, each with one statement: an agent waits for every statement of its login.

use super::{Conn, StoreError, agents, feed, row, statements::statements};
use crate::domain::agent::parse_status;
use countersign_identity::{AgentId, AgentStatus, P256PublicKey, Revision, ServiceId};
use sqlx::any::AnyRow;

/// Selects the status of the agent `$1`, and the number of services `$2`. Deleted ones do not count.
macro_rules! agent_and_service {
    () => {
        "(SELECT status FROM agents WHERE id = $1 AND deleted_at IS NULL) AS status, \
         CAST((SELECT COUNT(*) FROM services WHERE id = $2 AND deleted_at IS NULL) AS BIGINT) AS services"
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
}

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

fn has_service(row: &AnyRow) -> Result<bool, StoreError> {
    Ok(row::get::<i64>(row, "services")? > 0)
}

fn status_from_row(row: &AnyRow) -> Result<Option<AgentStatus>, StoreError> {
    let status: Option<String> = row::get(row, "status")?;
    status.map(|status| parse_status(&status).ok_or(StoreError::Corrupt("status"))).transpose()
}
