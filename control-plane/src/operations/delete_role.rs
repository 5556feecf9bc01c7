//! Delete a role, whoever holds it.

use super::{Context, Denied, Missing};
use crate::{
    domain::{
        audit::{Act, Author, Entry, Object},
        change::Change,
        webhook::event::{EventAudience, EventKind},
    },
    store::{Write, assignments, outbox, roles, services},
};
use countersign_identity::{RoleId, ServiceId};

/// Deletes a role with all its assignments. Sidecars learn one thing, however many hold it: that it is no longer
/// defined. A role that is not defined grants nothing, and a later one of the same name is another role.
pub async fn delete_role(context: &Context, by: &Author, service: ServiceId, role: RoleId) -> Result<(), Denied> {
    let work = async |mut tx: Write| {
        if !services::lock(tx.conn(), service).await? {
            return Err(Denied::Missing(Missing::Service));
        }
        let found = roles::find(tx.conn(), service, role).await?.ok_or(Denied::Missing(Missing::Role))?;
        let (now, audience) = (tx.now(), EventAudience::Service(service));
        // However many hold it: whoever asked is told of each, a little later.
        let wanted = outbox::has_recipients(tx.conn(), EventKind::RoleRevoked, audience, now).await?;
        let told_as = wanted.then_some(&found.definition.name);
        assignments::remove_all(tx.conn(), (service, role), told_as, now).await?;
        if !roles::delete(tx.conn(), service, role).await? {
            return Err(Denied::Missing(Missing::Role));
        }
        let act = Entry::at(service, Act::RoleDeleted).with(Object::Role(role));
        tx.record(by, &act.saying("name", found.definition.name.as_str())).await?;
        tx.changed(Change::Definitions(service));
        Ok(tx.commit(()).await?)
    };
    context.store.write("delete_role", work).await
}
