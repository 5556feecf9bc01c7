//! Change what a role permits, and what is said of it. Its name never changes: tokens carry it.

use super::define::names;
use crate::{
    domain::{
        audit::{AuditAction, Initiator, NewAuditEntry, Object},
        change::Change,
        role::{Role, fits_service},
        text::Description,
    },
    operations::{Context, NotFound, OperationError},
    store::{Write, roles, services},
};
use countersign_identity::{Permission, RoleId, ServiceId};

/// What is to be changed; what is absent stays.
#[derive(Debug, Clone)]
pub struct RoleChange {
    /// What it permits from now on.
    pub permissions: Option<Vec<Permission>>,
    /// What it is for.
    pub description: Option<Description>,
}

/// Changes a role. Whoever holds it has its new permissions at once: sidecars compute them from definitions.
pub async fn change_role(
    context: &Context,
    by: &Initiator,
    service: ServiceId,
    role: RoleId,
    change: &RoleChange,
) -> Result<Role, OperationError> {
    let work = async |mut tx: Write| {
        if !services::lock(tx.conn(), service).await? {
            return Err(OperationError::NotFound(NotFound::Service));
        }
        let mut existing = roles::list(tx.conn(), service).await?;
        let found = existing.iter().position(|other| other.definition.id == role);
        let mut changed = existing.swap_remove(found.ok_or(OperationError::NotFound(NotFound::Role))?);
        let before = changed.clone();
        let RoleChange { permissions, description } = change.clone();
        changed.description = description.unwrap_or(changed.description);
        if let Some(permissions) = permissions {
            fits_service(&existing, &permissions).map_err(|error| OperationError::Conflict(error.to_string()))?;
            changed.definition.permissions = permissions;
            tx.record_change(Change::Definitions(service));
        }
        roles::update(tx.conn(), &changed).await?;
        let entry = difference(&before, &changed);
        if !entry.details.is_empty() {
            tx.audit(by, &entry).await?;
        }
        Ok(tx.commit(changed).await?)
    };
    context.store.write("change_role", work).await
}

/// The act, which says what changed, if anything did.
fn difference(before: &Role, after: &Role) -> NewAuditEntry {
    let (old, new) = (&before.definition, &after.definition);
    NewAuditEntry::for_service(after.service, AuditAction::RoleChanged)
        .object(Object::Role(new.id))
        .changed("permissions", names(&old.permissions), names(&new.permissions))
        .changed("description", before.description.as_str(), after.description.as_str())
}
