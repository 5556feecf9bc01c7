//! Builds the Redis client and the rate limiter from the settings.

mod tls;

use super::AppError;
use crate::{
    config::{Config, RedisKind, RedisTarget},
    ephemeral::{
        MemoryRateLimiter, RateLimiter, RedisClient, RedisEndpoint, RedisRateLimiter, RedisServers, SentinelTarget,
    },
    metrics::Metrics,
    store::{Store, master_keys},
};
use countersign_process::{
    Clock,
    file_reload::{FileContents, LoadedFiles},
};
use std::sync::Arc;

/// Length of the name of the Countersign deployment in Redis keys. The name of a deployment consists of the first characters of
/// the fingerprint of its first master key, so that a rotation of the master key does not change the name.
const DEPLOYMENT_NAME_LENGTH: usize = 16;

/// Creates the client of the configured Redis, and connects it if Redis is available. Also returns the files of the
/// certificates, if any are configured. `None` if no Redis is configured.
pub(super) async fn connect(
    config: &Config,
    store: &Store,
    metrics: &Metrics,
) -> Result<Option<(Arc<RedisClient>, Option<LoadedFiles>)>, AppError> {
    let Some((endpoint, files)) = endpoint(config)? else { return Ok(None) };
    let mut deployment = master_keys::find_first(store.read().await?.conn()).await?;
    deployment.truncate(DEPLOYMENT_NAME_LENGTH);
    let client = RedisClient::new(endpoint, &deployment, metrics.redis.clone());
    client.connect_at_startup().await;
    Ok(Some((Arc::new(client), files)))
}

/// Uses the new contents of the certificate files for the next connections.
pub(super) fn replace_certificates(
    client: &RedisClient,
    target: &RedisTarget,
    contents: &FileContents,
) -> Result<String, AppError> {
    let certificates = tls::parse_contents(target, contents)?;
    client.replace_certificates(certificates);
    Ok("certificates for the next connections to Redis".to_owned())
}

/// The configured Redis, and the files of its certificates. `None` if no Redis is configured.
pub(super) fn endpoint(config: &Config) -> Result<Option<(RedisEndpoint, Option<LoadedFiles>)>, AppError> {
    let Some(target) = config.redis.target() else { return Ok(None) };
    let certificates = tls::load_certificates(&target)?;
    let files = certificates.as_ref().map(|certificates| tls::loaded_files(&target, certificates));
    let endpoint = RedisEndpoint::new(servers(target), certificates);
    endpoint.validate().map_err(|error| AppError::setting("redis.url", error))?;
    Ok(Some((endpoint, files)))
}

/// The rate limiter: in Redis if a client is passed, else in memory.
pub(super) fn rate_limiter(client: Option<Arc<RedisClient>>, clock: Arc<dyn Clock>) -> Arc<dyn RateLimiter> {
    let in_memory = MemoryRateLimiter::new(clock);
    match client {
        Some(client) => Arc::new(RedisRateLimiter::new(client, in_memory)),
        None => Arc::new(in_memory),
    }
}

fn servers(target: RedisTarget) -> RedisServers {
    let RedisTarget { kind, mut urls, master, sentinel_user: user, sentinel_password: password, .. } = target;
    match kind {
        RedisKind::Single => RedisServers::Single(urls.pop().unwrap_or_default()),
        RedisKind::Cluster => RedisServers::Cluster(urls),
        RedisKind::Sentinel => RedisServers::Sentinel(urls, SentinelTarget { master, user, password }),
    }
}
