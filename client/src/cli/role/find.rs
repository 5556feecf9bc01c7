//! Finds a role by its name or id.

use crate::cli::{
    error::{Cause, CliError},
    ids::{LONGEST_ID, redacted_argument},
};
use countersign_client::api::{Role, ServiceApi};
use countersign_identity::RoleId;

/// The id of a role, with its name if the command has loaded it.
pub struct RoleRef {
    pub id: String,
    pub name: Option<String>,
}

/// Finds a role by its name or id. Only a name needs a request.
pub async fn find_role(service: &ServiceApi, role: &str) -> Result<RoleRef, CliError> {
    if role.parse::<RoleId>().is_ok() {
        return Ok(RoleRef { id: role.to_owned(), name: None });
    }
    let roles = service.list_roles().await?;
    let Role { role_id: id, name, .. } = roles.into_iter().find(|listed| listed.name == role).ok_or_else(|| {
        let next = "`countersign role list` shows the roles; `countersign role create` creates one";
        let shown = redacted_argument(role, LONGEST_ID);
        let message = format!("the service has no role `{shown}`");
        CliError::from(Cause::NotFound { code: "ROLE_NOT_FOUND", message }).with_next(next)
    })?;
    Ok(RoleRef { id, name: Some(name) })
}
