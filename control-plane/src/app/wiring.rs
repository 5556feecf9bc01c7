//! Builds the components of the control plane from the settings, when it starts.

use super::{AppError, Dependencies, development};
use crate::{
    address_guard::AddressGuard,
    certificates,
    config::{Config, LimitSettings, QuotaSettings, RegistrationSettings, ServiceCreators, WebhookSettings},
    domain::{
        agent_hash_secret::AgentHashSecret,
        quota::Quotas,
        signing_key::RotationPolicy,
        webhook::{
            address::AllowedNetworks,
            delivery::{AttemptFailure, RetrySchedule},
            health::QueueHealthProbe,
        },
    },
    files,
    http::{LimitsPerMinute, OTHER_REASONS, rate_categories},
    keyring::{Keyring, MasterKeyRing},
    metrics::{HousekeepingStatus, LabelValues, Metrics, timestamp_value},
    operations::{Context, ContextParts, HousekeepingSample, OperationConfig},
    sidecars::Sidecars,
    store::{Store, WriteTransaction, deployment},
    sync::STREAM_LIMITS,
    webhooks::{ConcurrencyLimits, DispatcherHealth, HttpSender, WebhookDispatcher},
};
use countersign_identity::{Timestamp, agent_hash::HASH_KEY_LEN};
use countersign_process::{Places, Rng, certificates::Certificate, file_reload::LoadedFiles};
use std::{path::PathBuf, sync::Arc};
use tokio::sync::Notify;
use zeroize::Zeroizing;

/// Maximum number of API keys that are read from the database at the same time.
const KEY_LOOKUPS: usize = 8;

/// Maximum number of API keys that are read at the same time for one client, so that a client that guesses keys delays no other.
const KEY_LOOKUPS_PER_CLIENT: usize = 2;

/// Creates the metrics, with the label values that other modules define.
pub(super) fn metrics() -> Result<Metrics, AppError> {
    let delivery_failures: Vec<_> = AttemptFailure::ALL.iter().map(|failure| failure.as_str()).collect();
    let labels = LabelValues {
        other_reasons: &OTHER_REASONS,
        rate_limit_categories: &rate_categories(),
        delivery_failures: &delivery_failures,
        stream_limits: &STREAM_LIMITS,
    };
    let metrics = Metrics::new(&labels)?;
    crate::http::initialize_operation_metrics(&metrics.operations);
    Ok(metrics)
}

/// Builds the context of all operations. Also returns those parts of it that servers and background tasks use.
pub(super) fn context(
    config: &Config,
    issuer: &str,
    dependencies: &Dependencies,
    store: Store,
    master_keys: MasterKeyRing,
    agent_hash_secret: AgentHashSecret,
    queue_health: QueueHealthProbe,
) -> (Arc<Context>, ContextParts) {
    let Dependencies { clock, rng, resolver, .. } = dependencies;
    let challenge_keys = master_keys.challenge_keys();
    let networks = AllowedNetworks::new(config.webhooks.networks(config.dev));
    let parts = ContextParts {
        sidecars: Sidecars::new(store.clone(), clock.clone(), rng.clone()),
        store,
        keyring: Arc::new(Keyring::new(master_keys)),
        clock: clock.clone(),
        rng: rng.clone(),
        address_guard: AddressGuard::new(resolver.clone(), networks),
        dispatcher_wakeup: Arc::new(Notify::new()),
        agent_hash_secret,
        key_lookups: Places::new(KEY_LOOKUPS, KEY_LOOKUPS_PER_CLIENT),
    };
    (Arc::new(Context::new(parts.clone(), challenge_keys, operation_config(config, issuer), queue_health)), parts)
}

fn operation_config(config: &Config, issuer: &str) -> OperationConfig {
    let access_token_lifetime = config.access_token_lifetime();
    OperationConfig {
        issuer: issuer.to_owned(),
        access_token_lifetime,
        session_lifetime: config.session_lifetime(),
        key_rotation: RotationPolicy::new(config.max_staleness(), config.rotation_age(), access_token_lifetime),
        quotas: quotas(config.quotas, config.registration),
        only_admins_create_services: config.services.created_by == ServiceCreators::Admin,
    }
}

const fn quotas(settings: QuotaSettings, registration: RegistrationSettings) -> Quotas {
    let QuotaSettings { services_per_person, agents_per_person, keys_per_service, sessions_per_agent } = settings;
    let RegistrationSettings { public_agents } = registration;
    Quotas { services_per_person, agents_per_person, public_agents, keys_per_service, sessions_per_agent }
}

pub(super) fn expose_housekeeping(metrics: &Metrics, context: Arc<Context>) -> Result<(), AppError> {
    let status = move |sample: HousekeepingSample| HousekeepingStatus {
        data: sample.data.as_str(),
        oldest: timestamp_value(sample.oldest),
        deleted: sample.deleted,
    };
    Ok(metrics.expose_housekeeping(move || context.housekeeping_samples().into_iter().map(status).collect())?)
}

/// Builds the HTTP client that sends events. Also returns the file of its certificate authorities, if one is configured.
pub(super) fn http_sender(
    settings: &WebhookSettings,
    guard: &AddressGuard,
) -> Result<(HttpSender, Option<LoadedFiles>), AppError> {
    let path = &settings.ca_file;
    let authorities =
        files::read_if_set(path).map_err(|error| AppError::setting_file("webhooks.ca_file", path, error))?;
    let sender = HttpSender::new(guard.clone(), authorities.as_deref(), settings.attempt_timeout())
        .map_err(|error| AppError::setting("webhooks.ca_file", error))?;
    Ok((sender, authorities.map(|pem| LoadedFiles::new("webhooks.ca_file", &[(path, &pem)]))))
}

/// Loads the configured certificate. If none is configured, which only --dev allows, generates one and also returns the file of
/// the development certificate authority.
pub(super) fn certificate(config: &Config, now: Timestamp) -> Result<(Certificate, Option<PathBuf>), AppError> {
    let (chain, private_key) = (&config.tls.certificate, &config.tls.private_key);
    if chain.as_os_str().is_empty() {
        let (certificate, authority) = certificates::for_development(&config.data_dir, development::year(now))?;
        return Ok((certificate, Some(authority)));
    }
    Ok((Certificate::read(chain, private_key)?, None))
}

pub(super) const fn limits_per_minute(settings: LimitSettings) -> LimitsPerMinute {
    let LimitSettings { auth, address, verification, management, feedback } = settings;
    LimitsPerMinute { auth, address, verification, management, feedback }
}

/// Loads the secret from which we derive the keys that hash agent ids for sidecars. The first start generates and stores it.
pub(super) async fn load_agent_hash_secret(store: &Store, rng: &dyn Rng) -> Result<AgentHashSecret, AppError> {
    let mut generated = Zeroizing::new([0; HASH_KEY_LEN]);
    rng.fill(generated.as_mut());
    let generated = &generated;
    let work = async |mut tx: WriteTransaction| {
        let secret = deployment::set_agent_hash_secret(tx.conn(), generated).await?;
        tx.commit(secret).await
    };
    Ok(AgentHashSecret::new(store.write("set_agent_hash_secret", work).await?))
}

/// Builds the dispatcher that delivers events to webhooks.
pub(super) fn webhook_dispatcher(
    settings: &WebhookSettings,
    parts: &ContextParts,
    metrics: &Metrics,
    sender: Arc<HttpSender>,
    health: Arc<DispatcherHealth>,
) -> WebhookDispatcher {
    WebhookDispatcher {
        store: parts.store.clone(),
        keyring: parts.keyring.clone(),
        sender,
        clock: parts.clock.clone(),
        rng: parts.rng.clone(),
        schedule: RetrySchedule::new(settings.retry_pauses()),
        attempt_timeout: settings.attempt_timeout(),
        limits: ConcurrencyLimits::of_total(settings.concurrency()),
        wakeup: parts.dispatcher_wakeup.clone(),
        health,
        metrics: metrics.webhooks.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_of_the_api_have_the_default_limits() {
        let config = Config::read(None, Vec::new(), Vec::new(), false).unwrap();
        assert_eq!(limits_per_minute(config.limits), LimitsPerMinute::DEFAULT);
    }
}
