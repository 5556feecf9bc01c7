//! Reads the roles of changed agents at services: those of many agents with one statement and as one text, for the same reason
//! as in `changed_data`.

use super::{Conn, StoreError, changed_data::parse, row, statements::statements};
use countersign_identity::{AgentId, RoleGrant, ServiceId, Timestamp};
use sqlx::AssertSqlSafe;

/// The number of role holders that one statement reads at most.
pub(super) const MAX_HOLDERS: usize = 256;

/// The numbers of role holders for which there is a statement. The databases prepare few statements, and a single change is read
/// with a short one.
const STATEMENT_SIZES: [usize; 3] = [1, 16, MAX_HOLDERS];

/// The list of one role holder, in whose place [`statement`] puts a longer one.
macro_rules! first_holder {
    () => {
        "(0, $1, $2)"
    };
}

statements! { STATEMENTS:
    ROLES_OF_HOLDERS = concat!(
        "WITH holders (number, agent_id, service_id) AS (VALUES ", first_holder!(), ") \
         SELECT COALESCE(string_agg(h.number || ':' || g.role_id || ':' || COALESCE(CAST(g.expires_at AS TEXT), ''), ','), '') AS roles \
         FROM holders h CROSS JOIN assignments g WHERE g.agent_id = h.agent_id AND g.service_id = h.service_id"
    );
}

/// An agent that holds roles at a service.
pub(super) type RoleHolder = (AgentId, ServiceId);

/// Returns the roles of at most [`MAX_HOLDERS`] role holders, in the order of the role holders. Expired roles are included.
pub(super) async fn find(conn: &mut Conn, holders: &[RoleHolder]) -> Result<Vec<Vec<RoleGrant>>, StoreError> {
    let size = STATEMENT_SIZES.into_iter().find(|size| *size >= holders.len()).unwrap_or(MAX_HOLDERS);
    let ids = holders.iter().flat_map(|(agent, service)| [agent.to_string(), service.to_string()]);
    // No agent has an empty id.
    let ids = ids.chain(std::iter::repeat_with(String::new)).take(2 * size);
    let sql = statement(size);
    let query = ids.fold(sqlx::query(AssertSqlSafe(sql)), sqlx::query::Query::bind);
    let text: String = row::get(&query.fetch_one(conn).await?, "roles")?;
    let mut roles = vec![Vec::new(); holders.len()];
    for role in text.split_terminator(',') {
        let (number, grant) = role.split_once(':').ok_or(StoreError::Corrupt("role_id"))?;
        let of_holder = roles.get_mut(parse::<usize>("number", number)?).ok_or(StoreError::Corrupt("number"))?;
        of_holder.push(parse_grant(grant)?);
    }
    for of_holder in &mut roles {
        // The databases may join the roles in any order.
        of_holder.sort_unstable_by_key(|grant| grant.role);
    }
    Ok(roles)
}

fn parse_grant(text: &str) -> Result<RoleGrant, StoreError> {
    let (role, until) = text.split_once(':').ok_or(StoreError::Corrupt("role_id"))?;
    let until = if until.is_empty() { None } else { Some(Timestamp::from_micros(parse("expires_at", until)?)) };
    Ok(RoleGrant { role: parse("role_id", role)?, until })
}

/// The statement that reads the roles of so many role holders.
fn statement(size: usize) -> String {
    let holders: Vec<_> =
        (0..size).map(|number| format!("({number}, ${}, ${})", 2 * number + 1, 2 * number + 2)).collect();
    ROLES_OF_HOLDERS.replacen(first_holder!(), &holders.join(", "), 1)
}

/// All statements that are built at run time, for the conformance tests.
#[cfg(test)]
pub(super) fn dynamic_statements() -> Vec<String> {
    STATEMENT_SIZES.map(statement).to_vec()
}
