//! Define a role, and list those that are defined.

use crate::{
    domain::{
        audit::{AuditAction, Initiator, NewAuditEntry, Object},
        change::Change,
        role::{Role, RoleRequest, fits_service},
    },
    operations::{Context, NotFound, OperationError, Reply},
    store::{Write, roles, services},
};
use countersign_identity::{Permission, RoleDefinition, RoleId, ServiceId};
use serde::{Serialize, de::DeserializeOwned};

/// Defines a role. Its name is unique at the service and is never changed.
pub async fn create_role<R: Serialize + DeserializeOwned>(
    context: &Context,
    by: &Initiator,
    service: ServiceId,
    request: &RoleRequest,
    reply: &Reply<Role, R>,
) -> Result<R, OperationError> {
    let once = &reply.to(by, &["create_role", &service.to_string()]);
    let id = context.fresh(RoleId::from_bits);
    let RoleRequest { name, description, permissions } = request;
    let entry = &NewAuditEntry::for_service(service, AuditAction::RoleCreated)
        .object(Object::Role(id))
        .detail("name", name.as_str())
        .detail("description", description.as_str())
        .detail("permissions", names(permissions));
    let work = async |mut tx: Write| {
        if let Some(answer) = once.before(&mut tx).await? {
            return Ok(tx.commit(answer).await?);
        }
        if !services::lock(tx.conn(), service).await? {
            return Err(OperationError::NotFound(NotFound::Service));
        }
        let existing = roles::list(tx.conn(), service).await?;
        fits_service(&existing, permissions).map_err(|error| OperationError::Conflict(error.to_string()))?;
        tx.audit(by, entry).await?;
        let created_revision = tx.revision().await?;
        let definition = RoleDefinition { id, name: name.clone(), permissions: permissions.clone(), created_revision };
        let role = Role { definition, service, description: description.clone(), created_at: tx.now() };
        if !roles::insert(tx.conn(), &role).await? {
            return Err(OperationError::Conflict(format!("the service has a role named `{name}` already")));
        }
        tx.record_change(Change::Definitions(service));
        let answer = once.after(&mut tx, &role).await?;
        Ok(tx.commit(answer).await?)
    };
    context.store.write("create_role", work).await
}

/// Permissions, as an audit keeps them.
pub(in crate::operations) fn names(permissions: &[Permission]) -> Vec<&str> {
    permissions.iter().map(Permission::as_str).collect()
}

/// All roles of a service, oldest first.
pub async fn list_roles(context: &Context, service: ServiceId) -> Result<Vec<Role>, OperationError> {
    let mut read = context.store.read().await?;
    services::find(read.conn(), service).await?.ok_or(OperationError::NotFound(NotFound::Service))?;
    Ok(roles::list(read.conn(), service).await?)
}
