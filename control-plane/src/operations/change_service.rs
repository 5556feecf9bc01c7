//! Change what people call a service, and which tokens it accepts.

use super::{Context, Denied, Missing};
use crate::{
    domain::{
        audit::{Act, Author, Entry},
        change::Change,
        service::Service,
        text::DisplayName,
    },
    store::{Write, services},
};
use countersign_identity::ServiceId;

/// What is to be changed; what is absent stays.
#[derive(Debug, Clone)]
pub struct ServiceChange {
    /// What people call it.
    pub name: Option<DisplayName>,
    /// Whether tokens that are bound to no service are accepted.
    pub accepts_unbound: Option<bool>,
}

/// Changes a service. Its sidecars judge tokens by it at once.
pub async fn change_service(
    context: &Context,
    by: &Author,
    service: ServiceId,
    change: &ServiceChange,
) -> Result<Service, Denied> {
    let work = async |mut tx: Write| {
        if !services::lock(tx.conn(), service).await? {
            return Err(Denied::Missing(Missing::Service));
        }
        let before = services::find(tx.conn(), service).await?.ok_or(Denied::Missing(Missing::Service))?;
        let ServiceChange { name, accepts_unbound } = change.clone();
        let after = Service {
            name: name.unwrap_or_else(|| before.name.clone()),
            accepts_unbound: accepts_unbound.unwrap_or(before.accepts_unbound),
            ..before.clone()
        };
        let now = tx.now();
        services::update(tx.conn(), &after, now).await?;
        let act = Entry::at(service, Act::ServiceChanged)
            .changing("name", before.name.as_str(), after.name.as_str())
            .changing("acceptsUnboundTokens", before.accepts_unbound, after.accepts_unbound);
        if !act.details.is_empty() {
            tx.record(by, &act).await?;
        }
        if after.accepts_unbound != before.accepts_unbound {
            tx.changed(Change::ServiceSettings(service));
        }
        Ok(tx.commit(after).await?)
    };
    context.store.write("change_service", work).await
}
