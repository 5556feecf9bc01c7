//! The change feed, whose changes the sync streams send to sidecars. The facet of a change is the kind of data that has changed.
//! The position of the feed is the newest revision, the revision floor (the oldest revision from which a sidecar can resume) and
//! the cutoff of the last restore (sessions that began below it are invalid).

use super::{
    Conn, StoreError,
    query::{Parameter, ToParameter, params},
    row,
    row_lists::row_list_statements,
    statements::statements,
    token_audiences::{MAX_SIDECAR_LAG, audience_text},
};
use crate::domain::change::{Change, FeedEntry, FeedPosition, Recipients};
use countersign_identity::{AgentId, Revision, ServiceId, Timestamp, TokenId};
use sqlx::any::AnyRow;
use std::time::Duration;

/// The state of an agent as one text, which `changed_data` parses: its trust score, status and cutoff (the revision below which its
/// tokens are invalid), joined with `|`.
macro_rules! agent_state {
    ($agent:literal) => {
        concat!("(SELECT trust || '|' || status || '|' || cutoff FROM agents WHERE id = ", $agent, ")")
    };
}

/// The columns that [`position_from_row`] reads.
macro_rules! position_columns {
    () => {
        "revision, floor, COALESCE(restored_revision, 0) AS cutoff"
    };
}
pub(super) use position_columns;

statements! { STATEMENTS:
    INSERT_POSITION = "INSERT INTO feed (id, revision, floor) VALUES (1, $1, $1)";
    FIND_POSITION = concat!("SELECT ", position_columns!(), " FROM feed WHERE id = 1");
    ADVANCE_AFTER_RESTORE = "UPDATE feed SET revision = CASE WHEN revision >= $1 THEN revision + $2 ELSE $1 END, \
         restored_at = $3 WHERE id = 1";
    RAISE_FLOOR_AFTER_RESTORE = "UPDATE feed SET floor = revision, restored_revision = revision WHERE id = 1";
    NEXT_REVISION = "UPDATE feed SET revision = CASE WHEN revision >= $1 THEN revision + 1 ELSE $1 END WHERE id = 1 \
         RETURNING revision";
    /// The recipients are the audiences of the agent's live tokens. The transaction already has its revision, so the state contains
    /// everything that transactions with lower revisions have changed.
    INSERT_AGENT_CHANGES = concat!(
        "INSERT INTO changes (revision, position, facet, subject, recipient, recorded_at, agent_state) \
         SELECT CAST($1 AS BIGINT), CAST($2 AS BIGINT) + ROW_NUMBER() OVER (ORDER BY service_id) - 1, CAST($3 AS TEXT), \
         CAST($4 AS TEXT), service_id, CAST($5 AS BIGINT), ", agent_state!("$4"),
        " FROM token_audiences WHERE agent_id = $4 AND expires_at > $6"
    );
    /// The recipients are the audiences of the session's live tokens.
    INSERT_SESSION_CHANGES = "INSERT INTO changes (revision, position, facet, subject, recipient, recorded_at) \
         SELECT CAST($1 AS BIGINT), CAST($2 AS BIGINT) + ROW_NUMBER() OVER (ORDER BY t.service_id) - 1, CAST($3 AS TEXT), \
         CAST($4 AS TEXT), t.service_id, CAST($5 AS BIGINT) FROM sessions s JOIN token_audiences t ON t.agent_id = s.agent_id \
         WHERE s.id = $4 AND t.expires_at > $6 AND ',' || s.audiences || ',' LIKE '%,' || t.service_id || ',%'";
    HAS_CHANGES_AT = "SELECT 1 AS known FROM changes WHERE revision = $1 AND revision > $2 LIMIT 1";
    SETTINGS_CHANGED = "SELECT 1 AS changed FROM changes WHERE facet = 'settings' AND recipient = $1 AND revision > $2 LIMIT 1";
    TOKEN_IS_REVOKED = "SELECT 1 AS revoked FROM changes WHERE facet = 'token' AND subject = $1 LIMIT 1";
    ROLES_CHANGED = "SELECT 1 AS changed FROM changes WHERE facet = 'roles' AND subject = $1 AND recipient = $2 \
         AND revision > $3 LIMIT 1";
    /// Reads one entry of an index, however many changes there are. The result may be below the revision floor (for a while after a
    /// restore, or after a commit while the clock was far ahead), so `RAISE_FLOOR` must not lower the floor.
    FIND_NEWEST_CHANGE_UNTIL = "SELECT revision FROM changes WHERE recorded_at <= $1 \
         ORDER BY recorded_at DESC, revision DESC LIMIT 1";
    NEWEST_CHANGE_TIME = "SELECT MAX(recorded_at) AS at FROM changes";
    RAISE_FLOOR = "UPDATE feed SET floor = $1 WHERE id = 1 AND floor < $1";
    /// Revisions may be in another order than the times of transactions. So a change that is old enough may still be above the
    /// floor, and cannot be deleted until the floor rises.
    OLDEST_CHANGE = "SELECT MIN(recorded_at) AS oldest FROM changes WHERE recorded_at >= $1 AND recorded_at <= $2 \
         AND revision <= (SELECT floor FROM feed WHERE id = 1)";
    DELETE_BELOW_FLOOR = "DELETE FROM changes WHERE (revision, position) IN (SELECT revision, position FROM changes \
         WHERE recorded_at >= $1 AND recorded_at <= $2 AND revision <= (SELECT floor FROM feed WHERE id = 1) \
         ORDER BY recorded_at LIMIT $3 + 0)";
}

row_list_statements! { ROW_LISTS:
    /// The rows have the position, the facet, the subject and the recipient of a change.
    INSERT_CHANGES = "INSERT INTO changes (revision, position, facet, subject, recipient, recorded_at) \
         SELECT CAST($1 AS BIGINT), column1, column2, column3, column4, CAST($2 AS BIGINT) FROM (VALUES \
         {(CAST($3 AS BIGINT), CAST($4 AS TEXT), CAST($5 AS TEXT), CAST($6 AS TEXT))}) AS v WHERE column2 <> ''";
}

const MICROS_PER_SECOND: i64 = 1_000_000;

/// The column `recipient` of an entry that no service receives. For unbound tokens, which are for no service, the column is empty.
const NO_SERVICE: &str = "-";

/// Largest difference assumed between the clocks of two machines.
pub const MAX_CLOCK_SKEW: Duration = Duration::from_mins(5);

/// Creates the position of the change feed for a new Countersign deployment.
pub async fn create_position(conn: &mut Conn, now: Timestamp) -> Result<(), StoreError> {
    conn.apply(INSERT_POSITION, params![now]).await
}

/// Returns the current position of the change feed.
pub async fn position(conn: &mut Conn) -> Result<FeedPosition, StoreError> {
    find_feed_position(conn).await?.ok_or(StoreError::UnexpectedRowCount("feed"))
}

/// Finds the current position of the change feed; `None` before the row of the Countersign deployment is created.
pub async fn find_feed_position(conn: &mut Conn) -> Result<Option<FeedPosition>, StoreError> {
    conn.find_row(FIND_POSITION, params![], position_from_row).await
}

/// Reads the columns `position_columns`.
pub(super) fn position_from_row(row: &AnyRow) -> Result<FeedPosition, StoreError> {
    let (revision, floor) = (row::revision(row, "revision")?, row::revision(row, "floor")?);
    Ok(FeedPosition { revision, floor, cutoff: row::revision(row, "cutoff")? })
}

/// Raises the revision, the revision floor and the cutoff of the change feed after a restore, above every revision that a
/// sidecar or a token can have.
pub async fn advance_after_restore(conn: &mut Conn, now: Timestamp) -> Result<(), StoreError> {
    // The machine before the restore may have had a clock ahead of ours. Even then, two restores must get different revisions: the
    // revision tells which challenges were issued before the restore.
    let step = 1 + now.micros().rem_euclid(MICROS_PER_SECOND);
    let min_revision = now.saturating_add(MAX_CLOCK_SKEW).micros();
    conn.apply(ADVANCE_AFTER_RESTORE, params![min_revision, step, now]).await?;
    conn.must_change_row(RAISE_FLOOR_AFTER_RESTORE, "feed", params![]).await
}

/// The time of the newest change that is still in the change feed.
pub async fn newest_change_time(conn: &mut Conn) -> Result<Option<Timestamp>, StoreError> {
    conn.read_row(NEWEST_CHANGE_TIME, params![], |row| row::optional_timestamp(row, "at")).await
}

/// Advances the change feed to the next revision and returns it. This revision is above the last one, and not behind the clock, so
/// that a restored database does not reuse revisions.
pub async fn next_revision(conn: &mut Conn, now: Timestamp) -> Result<Revision, StoreError> {
    conn.read_row(NEXT_REVISION, params![now], |row| row::revision(row, "revision")).await
}

/// Appends changes under one revision, each once for each of its recipients. For a change of a session, or of the status or cutoff
/// of an agent, the caller must hold the lock on the agent. A change of the trust score must already be committed, by a transaction
/// that held this lock.
pub async fn append_changes(
    conn: &mut Conn,
    revision: Revision,
    changes: &[Change],
    now: Timestamp,
) -> Result<(), StoreError> {
    let mut rows = RowWriter { revision, next_position: 0, now, waiting: Vec::new() };
    for change in changes {
        let facet = facet_text(change);
        match *change {
            Change::Trust(agent) | Change::Status(agent) => {
                rows.insert_selected(conn, INSERT_AGENT_CHANGES, facet, agent.to_string()).await?;
            }
            Change::Session(session) => {
                rows.insert_selected(conn, INSERT_SESSION_CHANGES, facet, session.to_string()).await?;
            }
            Change::Token(token, audience) => rows.add(facet, &token, &audience_text(audience)),
            Change::Roles(agent, service) => rows.add(facet, &agent, &service),
            Change::Definitions(service) | Change::ServiceSettings(service) => {
                rows.add(facet, &service, &service);
            }
            Change::Keys => rows.add(facet, &"", &None::<ServiceId>),
        }
    }
    rows.insert_waiting(conn).await
}

/// Inserts the rows of one revision.
struct RowWriter {
    revision: Revision,
    next_position: i64,
    now: Timestamp,
    /// Rows with known recipients, which we insert together at the end.
    waiting: Vec<[Parameter; 4]>,
}

impl RowWriter {
    fn add(&mut self, facet: &'static str, subject: &impl ToParameter, recipient: &impl ToParameter) {
        self.waiting.push(params![self.next_position, facet, subject, recipient]);
        self.next_position += 1;
    }

    async fn insert_waiting(self, conn: &mut Conn) -> Result<(), StoreError> {
        INSERT_CHANGES.execute(conn, &params![self.revision, self.now], self.waiting).await.map(drop)
    }

    /// Inserts one row for each recipient that a statement selects; without any, one row for [`NO_SERVICE`].
    async fn insert_selected(
        &mut self,
        conn: &mut Conn,
        sql: &'static str,
        facet: &'static str,
        subject: String,
    ) -> Result<(), StoreError> {
        let live_since = self.now.saturating_sub(MAX_SIDECAR_LAG);
        let parameters = params![self.revision, self.next_position, facet, subject, self.now, live_since];
        let inserted = conn.count_changes(sql, parameters).await?;
        if inserted == 0 {
            self.add(facet, &subject, &NO_SERVICE);
            return Ok(());
        }
        self.next_position += i64::try_from(inserted).unwrap_or(i64::MAX);
        Ok(())
    }
}

/// Selects entries of the change feed by recipient.
#[derive(Debug, Clone, Copy)]
pub struct RecipientFilter {
    /// Entries for this service.
    pub service: ServiceId,
    /// Whether to include entries for the services that accept unbound tokens.
    pub includes_unbound: bool,
}

/// Whether a sidecar can resume at `revision`: the change feed had this revision, and no later change was deleted.
pub async fn can_resume_at(conn: &mut Conn, position: FeedPosition, revision: Revision) -> Result<bool, StoreError> {
    if revision == position.revision || revision == position.floor {
        return Ok(true);
    }
    conn.has_row(HAS_CHANGES_AT, params![revision, position.floor]).await
}

/// Whether the settings of a service changed after `revision`, which must not be below the revision floor.
pub async fn settings_changed_since(
    conn: &mut Conn,
    service: ServiceId,
    revision: Revision,
) -> Result<bool, StoreError> {
    conn.has_row(SETTINGS_CHANGED, params![service, revision]).await
}

/// Whether an access token was revoked: the change feed keeps the revocation until the token has expired.
pub async fn token_is_revoked(conn: &mut Conn, token: TokenId) -> Result<bool, StoreError> {
    conn.has_row(TOKEN_IS_REVOKED, params![token]).await
}

/// Whether the roles of an agent at a service changed after `revision`, which must not be below the revision floor.
pub async fn roles_changed_since(
    conn: &mut Conn,
    agent: AgentId,
    service: ServiceId,
    revision: Revision,
) -> Result<bool, StoreError> {
    conn.has_row(ROLES_CHANGED, params![agent, service, revision]).await
}

/// Raises the revision floor past all changes that were written at or before `horizon`, so that they can be deleted. We go by the
/// time of writing and not by the revision: otherwise, a commit while the clock was far ahead would stop the deletion.
pub async fn raise_floor(conn: &mut Conn, horizon: Timestamp) -> Result<(), StoreError> {
    let revision = |row: &AnyRow| row::revision(row, "revision");
    if let Some(newest) = conn.find_row(FIND_NEWEST_CHANGE_UNTIL, params![horizon], revision).await? {
        conn.apply(RAISE_FLOOR, params![newest]).await?;
    }
    Ok(())
}

/// When the oldest change at or below the revision floor was written, among those that were written between two times.
pub async fn oldest_change(
    conn: &mut Conn,
    from: Timestamp,
    until: Timestamp,
) -> Result<Option<Timestamp>, StoreError> {
    conn.find_oldest(OLDEST_CHANGE, params![from, until]).await
}

/// Deletes up to `limit` changes at or below the revision floor that were written between two times. Returns their number.
pub async fn delete_below_floor(
    conn: &mut Conn,
    from: Timestamp,
    horizon: Timestamp,
    limit: i64,
) -> Result<u64, StoreError> {
    conn.count_changes(DELETE_BELOW_FLOOR, params![from, horizon, limit]).await
}

const fn facet_text(change: &Change) -> &'static str {
    match change {
        Change::Roles(..) => "roles",
        Change::Trust(_) => "trust",
        Change::Status(_) => "status",
        Change::Definitions(_) => "definitions",
        Change::ServiceSettings(_) => "settings",
        Change::Token(..) => "token",
        Change::Session(_) => "session",
        Change::Keys => "keys",
    }
}

/// Parses an entry of the change feed. A recipient of `None` stands for all services.
pub(super) fn parse_entry(
    revision: Revision,
    facet: &str,
    subject: &str,
    recipient: Option<&str>,
) -> Result<FeedEntry, StoreError> {
    let recipients = match recipient {
        None => Recipients::AllServices,
        Some("") => Recipients::UnboundTokens,
        Some(NO_SERVICE) => Recipients::NoService,
        Some(service) => Recipients::Service(service.parse().map_err(|_| StoreError::Corrupt("recipient"))?),
    };
    let service = || match recipients {
        Recipients::Service(service) => Ok(service),
        Recipients::AllServices | Recipients::UnboundTokens | Recipients::NoService => {
            Err(StoreError::Corrupt("recipient"))
        }
    };
    let corrupt_subject = || StoreError::Corrupt("subject");
    let agent = || subject.parse().map_err(|_| corrupt_subject());
    let change = match facet {
        "roles" => Change::Roles(agent()?, service()?),
        "trust" => Change::Trust(agent()?),
        "status" => Change::Status(agent()?),
        "definitions" => Change::Definitions(service()?),
        "settings" => Change::ServiceSettings(service()?),
        // A recipient that is not the id of a service stands for the audience of an unbound token.
        "token" => Change::Token(subject.parse().map_err(|_| corrupt_subject())?, service().ok()),
        "session" => Change::Session(subject.parse().map_err(|_| corrupt_subject())?),
        "keys" => Change::Keys,
        _ => return Err(StoreError::Corrupt("facet")),
    };
    Ok(FeedEntry { revision, change, recipients })
}
