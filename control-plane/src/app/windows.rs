//! Where calls are counted: in this process, or with all replicas in a Redis; and how replicas wake each other.

mod certificates;

use super::{AppError, servers};
use crate::{
    config::{Config, Inspection, RedisKind, SentinelSettings},
    ephemeral::{Memory, Place, Redis, Servers, Watched, Windows},
    metrics::Metrics,
    operations::Context,
    store::Store,
};
use countersign_process::Shutdown;
use secrecy::SecretString;
use std::sync::Arc;

/// How many characters of the master key's fingerprint name a deployment.
const NAME_LEN: usize = 16;

/// The Redis of the settings, if there is one; it need not answer.
pub(super) async fn redis(config: &Config, context: &Context, metrics: &Metrics) -> Result<Option<Redis>, AppError> {
    let Some((kind, urls)) = config.redis.place() else { return Ok(None) };
    let certificates = certificates::certificates(&config.redis)?;
    let place = Place::new(servers_of(kind, urls, config.redis.sentinel()), certificates);
    place.check()?;
    let mut deployment = context.keyring.fingerprint();
    deployment.truncate(NAME_LEN);
    let redis = Redis::new(place, &deployment, context.clock.clone(), metrics.redis.clone());
    redis.greet().await;
    Ok(Some(redis))
}

/// What would be refused at a start of the files that `[redis]` names: who only looks at settings may ask for it, since
/// nothing else would say that they are wrong than a Redis that is not there.
pub fn unreadable(inspection: &Inspection) -> Option<AppError> {
    certificates::certificates(&inspection.config()?.redis).err()
}

/// Where calls are counted.
pub(super) fn windows(redis: Option<Arc<Redis>>, context: &Context) -> Arc<dyn Windows> {
    match redis {
        Some(redis) => redis,
        None => Arc::new(Memory::new(context.clock.clone())),
    }
}

/// Keeps the connection, tells other replicas of changes, and hears of theirs.
pub(super) fn keep(servers: &mut servers::Servers, redis: &Arc<Redis>, store: &Store, shutdown: &Shutdown) {
    let (keeping, telling, hearing) = (redis.clone(), redis.clone(), redis.clone());
    let (newest, woken) = (store.committed_revision(), store.clone());
    servers::until_stopped(servers, shutdown, async move { keeping.keep().await });
    servers::until_stopped(servers, shutdown, async move { hearing.hear(|| woken.wake()).await });
    servers::until_stopped(servers, shutdown, async move { telling.tell(newest).await });
}

fn servers_of(kind: RedisKind, mut urls: Vec<SecretString>, sentinel: SentinelSettings) -> Servers {
    match kind {
        RedisKind::Single => Servers::Single(urls.pop().unwrap_or_default()),
        RedisKind::Cluster => Servers::Cluster(urls),
        RedisKind::Sentinel => {
            let SentinelSettings { master, user, password } = sentinel;
            Servers::Sentinel(urls, Watched { master, user, password })
        }
    }
}
