//! The roles of an agent at all services that accept unbound tokens, for the grants of such a token.
//!
//! A stranger may assign any number of roles to an agent, so the statements read a bounded number of services, and a bounded number of
//! assignments of each. Invariant: what we list is a state of after the revision of the token, which the caller has read before. Sidecars
//! replace it by all later changes, so it need not be of the same revision.

use super::{
    Conn, StoreError, assignments::is_of_live_role, known_agents::forgotten_until, query::params, row,
    row_lists::row_list_statements, statements::statements,
};
use crate::domain::unbound_roles::{MAX_ROLES_PER_SERVICE, RoleAtService, select_roles};
use countersign_identity::{AgentId, MAX_GRANTS, RoleGrant, ServiceId, Timestamp};
use sqlx::any::AnyRow;

/// The condition that an assignment is live at a time: it has not expired, and its role is not deleted.
macro_rules! is_live {
    ($now:literal) => {
        concat!("(expires_at IS NULL OR expires_at > ", $now, ") AND ", is_of_live_role!())
    };
}

statements! { STATEMENTS:
    /// The services that know the agent (since `$2`), then those of its owner, then others. Among these, the first service of each
    /// owner precedes the second one of any owner, and older services precede newer ones: so the order does not depend on when roles
    /// were assigned, and one person's services do not push out those of others. A service counts if it accepts unbound tokens, and
    /// the agent holds at least one role there, but at most `$4`. Services with 64 assignments, expired ones included, do not count.
    LIST_SERVICES = concat!(
        "WITH RECURSIVE holding (id, number) AS (SELECT (SELECT MIN(service_id) FROM assignments WHERE agent_id = $1), 1 \
         UNION ALL SELECT (SELECT MIN(service_id) FROM assignments WHERE agent_id = $1 AND service_id > holding.id), number + 1 \
         FROM holding WHERE id IS NOT NULL AND number < 1024), \
         named (id, precedence) AS (SELECT id, MIN(precedence) FROM \
         (SELECT service_id AS id, 0 AS precedence FROM known_agents WHERE agent_id = $1 AND contacted_at > $2 \
         UNION ALL SELECT s.id, 1 FROM agents g JOIN services s ON s.owner_issuer = g.owner_issuer \
         AND s.owner_subject = g.owner_subject AND s.deleted_at IS NULL WHERE g.id = $1 \
         UNION ALL SELECT id, 2 FROM holding WHERE id IS NOT NULL) named_twice GROUP BY id), \
         ordered (id, precedence, place, created_at) AS (SELECT s.id, n.precedence, ROW_NUMBER() OVER \
         (PARTITION BY n.precedence, s.owner_issuer, s.owner_subject ORDER BY s.created_at, s.id), s.created_at \
         FROM named n JOIN services s ON s.id = n.id AND s.deleted_at IS NULL AND s.refuses_unbound_since IS NULL \
         WHERE (SELECT 1 FROM assignments WHERE agent_id = $1 AND service_id = n.id LIMIT 1) IS NOT NULL \
         AND (SELECT 1 FROM assignments WHERE agent_id = $1 AND service_id = n.id LIMIT 1 OFFSET 63) IS NULL \
         ORDER BY 2, 3, 4, 1 LIMIT 256) \
         SELECT id AS service_id FROM ordered o \
         WHERE (SELECT COUNT(*) FROM assignments WHERE agent_id = $1 AND service_id = o.id AND ", is_live!("$3"), ") BETWEEN 1 AND $4 \
         ORDER BY precedence, place, created_at, id LIMIT $5 + 0"
    );
}

row_list_statements! { ROW_LISTS:
    LIST_ROLES = concat!(
        "SELECT service_id, role_id, expires_at FROM assignments WHERE agent_id = $1 AND ", is_live!("$2"),
        " AND service_id IN ({$3}) ORDER BY service_id, role_id"
    );
}

/// Lists the roles for the grants of an unbound token that is issued at `now`. Read the revision of the token before.
pub async fn list(conn: &mut Conn, agent: AgentId, now: Timestamp) -> Result<Vec<RoleAtService>, StoreError> {
    let [max_roles, max_services] =
        [MAX_ROLES_PER_SERVICE, MAX_GRANTS].map(|max| u32::try_from(max).unwrap_or(u32::MAX));
    let parameters = params![agent, forgotten_until(now), now, max_roles, max_services];
    let services: Vec<ServiceId> =
        conn.list_rows(LIST_SERVICES, parameters, |row| row::parse(row, "service_id")).await?;
    let rows = services.iter().map(|service| params![service]);
    let held: Vec<_> = LIST_ROLES.list_rows(conn, &params![agent, now], rows, role_at_service).await?;
    Ok(select_roles(&services, &held))
}

fn role_at_service(row: &AnyRow) -> Result<RoleAtService, StoreError> {
    let grant = RoleGrant { role: row::parse(row, "role_id")?, until: row::optional_timestamp(row, "expires_at")? };
    Ok(RoleAtService { service: row::parse(row, "service_id")?, grant })
}
