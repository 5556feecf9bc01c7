//! Reads the roles of changed agents at services. One statement reads the roles of many agents as one text, because the database
//! driver converts rows slowly (see `changed_data`).

use super::{Conn, StoreError, changed_data::parse_field, query::params, row, row_lists::row_list_statements};
use countersign_identity::{AgentId, RoleGrant, ServiceId, Timestamp};

/// How many role holders one statement reads at most.
pub(super) const MAX_HOLDERS: usize = 256;

row_list_statements! { ROW_LISTS:
    ROLES_OF_HOLDERS = "WITH holders (number, agent_id, service_id) AS (VALUES {(CAST($1 AS BIGINT), $2, $3)}) \
         SELECT COALESCE(string_agg(h.number || ':' || g.role_id || ':' || COALESCE(CAST(g.expires_at AS TEXT), ''), ','), '') AS roles \
         FROM holders h CROSS JOIN assignments g WHERE g.agent_id = h.agent_id AND g.service_id = h.service_id";
}

/// An agent that holds roles at a service.
pub(super) type RoleHolder = (AgentId, ServiceId);

/// Returns the roles of at most [`MAX_HOLDERS`] role holders, in the order of the role holders. Expired roles are included.
pub(super) async fn find(conn: &mut Conn, holders: &[RoleHolder]) -> Result<Vec<Vec<RoleGrant>>, StoreError> {
    let rows = (0_i64..).zip(holders).map(|(number, (agent, service))| params![number, agent, service]);
    let texts: Vec<String> = ROLES_OF_HOLDERS.list_rows(conn, &[], rows, |row| row::get(row, "roles")).await?;
    let mut roles = vec![Vec::new(); holders.len()];
    for role in texts.iter().flat_map(|text| text.split_terminator(',')) {
        let (number, grant) = role.split_once(':').ok_or(StoreError::Corrupt("role_id"))?;
        let of_holder = roles.get_mut(parse_field::<usize>("number", number)?).ok_or(StoreError::Corrupt("number"))?;
        of_holder.push(parse_grant(grant)?);
    }
    for of_holder in &mut roles {
        // The database may join the roles to one text in any order, so we sort them.
        of_holder.sort_unstable_by_key(|grant| grant.role);
    }
    Ok(roles)
}

fn parse_grant(text: &str) -> Result<RoleGrant, StoreError> {
    let (role, until) = text.split_once(':').ok_or(StoreError::Corrupt("role_id"))?;
    let until = if until.is_empty() { None } else { Some(Timestamp::from_micros(parse_field("expires_at", until)?)) };
    Ok(RoleGrant { role: parse_field("role_id", role)?, until })
}
