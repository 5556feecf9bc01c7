//! Tell sidecars whose trust changed: all together, since feedback may come faster than anybody needs to know.

use crate::{
    domain::change::Change,
    operations::{Context, Denied},
    store::{Write, trust},
};

/// Appends a change for every agent whose trust changed since the last time.
pub async fn announce_trust(context: &Context) -> Result<(), Denied> {
    if !trust::any_marks(context.store.read().await?.conn()).await? {
        return Ok(());
    }
    let work = async |mut tx: Write| {
        for agent in trust::take_marks(tx.conn()).await? {
            tx.changed(Change::Trust(agent));
        }
        Ok::<_, Denied>(tx.commit(()).await?)
    };
    context.store.write("announce_trust", work).await
}
