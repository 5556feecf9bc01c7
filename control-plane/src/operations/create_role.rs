//! Define a role, and list those that are defined.

use super::{Context, Denied, Missing};
use crate::{
    domain::{
        change::Change,
        role::{Role, RoleRequest, fits_service},
    },
    store::{Write, roles, services},
};
use countersign_identity::{RoleDefinition, RoleId, ServiceId};

/// Defines a role. Its name is unique at the service and is never changed.
pub async fn create_role(context: &Context, service: ServiceId, request: &RoleRequest) -> Result<Role, Denied> {
    let id = context.fresh(RoleId::from_bits);
    let work = async |mut tx: Write| {
        if !services::lock(tx.conn(), service).await? {
            return Err(Denied::Missing(Missing::Service));
        }
        let existing = roles::of_service(tx.conn(), service).await?;
        fits_service(&existing, &request.permissions).map_err(|error| Denied::Conflict(error.to_string()))?;
        let definition = RoleDefinition {
            id,
            name: request.name.clone(),
            permissions: request.permissions.clone(),
            made_at: tx.revision().await?,
        };
        let role = Role { definition, service, description: request.description.clone(), created_at: tx.now() };
        if !roles::insert(tx.conn(), &role).await? {
            return Err(Denied::Conflict(format!("the service has a role named `{}` already", request.name)));
        }
        tx.changed(Change::Definitions(service));
        Ok(tx.commit(role).await?)
    };
    context.store.write("create_role", work).await
}

/// All roles of a service, oldest first.
pub async fn list_roles(context: &Context, service: ServiceId) -> Result<Vec<Role>, Denied> {
    let mut read = context.store.read().await?;
    services::find(read.conn(), service).await?.ok_or(Denied::Missing(Missing::Service))?;
    Ok(roles::of_service(read.conn(), service).await?)
}
