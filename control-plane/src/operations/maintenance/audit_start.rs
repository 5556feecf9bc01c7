//! Begin the audit of a database that has none.

use crate::{
    domain::audit::{Act, Author, Entry},
    operations::Denied,
    store::{Store, Write, audit},
};

/// Begins the chain of the deployment, and those of services that were made before there was an audit. Once: a chain that
/// is missing later is missed.
pub async fn begin_audit(store: &Store) -> Result<(), Denied> {
    let work = async |mut tx: Write| {
        if !audit::began(tx.conn()).await? {
            tx.record(&Author::SYSTEM, &Entry::of_deployment(Act::AuditBegan)).await?;
            for service in audit::unrecorded(tx.conn()).await? {
                tx.record(&Author::SYSTEM, &Entry::at(service, Act::AuditBegan)).await?;
            }
        }
        Ok::<_, Denied>(tx.commit(()).await?)
    };
    store.write("begin_audit", work).await
}
