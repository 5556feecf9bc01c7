//! Creates a webhook.

use crate::{
    domain::{
        audit::{AuditAction, AuditedObject, Initiator, NewAuditEntry},
        quota::{ExceededQuota, WEBHOOKS_PER_SERVICE},
        text::{Description, ManagedBy},
        webhook::{
            TargetOwner, WebhookScope, WebhookTarget, address::HostRejection, event::EventFilter,
            secret::WebhookSecret, url::TargetUrl,
        },
    },
    operations::{Context, NotFound, OperationError, authorize::lock_managed_service, services::already_managed},
    store::{WriteTransaction, deployment, services, webhook_targets},
};
use countersign_identity::WebhookId;
use secrecy::SecretString;

/// The settings of a new webhook.
#[derive(Debug)]
pub struct NewWebhook {
    /// The URL that events are sent to.
    pub url: TargetUrl,
    /// The kinds of events that the webhook receives.
    pub events: EventFilter,
    /// Description of the webhook, as free text.
    pub description: Description,
    /// The name of the files in which the webhook is declared, if any.
    pub managed_by: Option<ManagedBy>,
}

/// Creates a webhook. Only the creation of a webhook and the rotation of its secret return the secret in plain text.
pub async fn create_webhook(
    context: &Context,
    initiator: &Initiator,
    scope: WebhookScope,
    request: NewWebhook,
) -> Result<(WebhookTarget, SecretString), OperationError> {
    let NewWebhook { url, events, description, managed_by } = request;
    check_url(context, scope, &url).await?;
    let (id, secret, now) =
        (context.new_id(WebhookId::from_bits), WebhookSecret::new(context.new_secret()), context.now());
    let sealed = &context.keyring.seal_webhook_secret(id, &secret, context.rng.as_ref())?;
    let target = &WebhookTarget {
        id,
        scope,
        url,
        events,
        description,
        managed_by,
        created_at: now,
        updated_at: now,
        paused_at: None,
        disabled: None,
        failing_since: None,
        previous_secret_until: None,
    };
    let entry = &NewAuditEntry::new(scope.chain(), AuditAction::WebhookCreated)
        .object(AuditedObject::Webhook(id))
        .with_detail("host", target.url.host().to_string())
        .with_detail("events", target.events.names())
        .managed_by_if_changed(None, target.managed_by.as_ref());
    let work = async |mut tx: WriteTransaction| {
        // The locks also serialize the creation of webhooks in one scope, so that concurrent requests cannot exceed the quota.
        lock_scope(&mut tx, initiator, scope).await?;
        if scope == WebhookScope::Deployment {
            deployment::lock(tx.conn()).await?;
        }
        let existing = webhook_targets::list(tx.conn(), scope).await?;
        if existing.len() >= usize::try_from(WEBHOOKS_PER_SERVICE).unwrap_or(usize::MAX) {
            return Err(OperationError::QuotaExceeded(ExceededQuota::WebhooksPerService));
        }
        refuse_managed_twin(&existing, target)?;
        let sealed = sealed.for_current_master_key(tx.conn()).await?;
        webhook_targets::insert(tx.conn(), target, sealed).await?;
        tx.audit(initiator, entry).await?;
        Ok(tx.commit(target.clone()).await?)
    };
    Ok((context.store.write("create_webhook", work).await?, secret.reveal()))
}

/// Refuses a webhook if its scope has another one with the same URL and the same `managed_by`. The caller must hold the lock on the
/// scope.
pub(super) fn refuse_managed_twin(existing: &[WebhookTarget], target: &WebhookTarget) -> Result<(), OperationError> {
    let is_twin = |other: &WebhookTarget| {
        other.id != target.id && other.url == target.url && other.managed_by == target.managed_by
    };
    if target.managed_by.is_some() && existing.iter().any(is_twin) {
        return Err(already_managed("webhook", &target.url.to_string(), target.managed_by.as_ref()));
    }
    Ok(())
}

/// Rejects a URL if its host does not resolve to an allowed address.
pub(super) async fn check_url(context: &Context, scope: WebhookScope, url: &TargetUrl) -> Result<(), OperationError> {
    let owner = match scope {
        WebhookScope::Service(service) => {
            let found = services::find_live(context.store.read().await?.conn(), service).await?;
            TargetOwner::Person(found.ok_or(OperationError::NotFound(NotFound::Service))?.owner)
        }
        WebhookScope::Deployment => TargetOwner::Deployment,
    };
    context.address_guard.check(url, &owner).await.map_err(|rejection| match rejection {
        HostRejection::TooManyLookups => {
            OperationError::Busy("Too many lookups of the hosts of webhooks are in progress: try again in a minute")
        }
        HostRejection::Unresolved | HostRejection::NotPublic | HostRejection::PlaintextNotAllowed => {
            OperationError::Invalid { field: "url", message: rejection.as_str() }
        }
    })
}

/// Locks the service of a scope until the transaction ends, and requires again that the initiator may manage it.
pub(super) async fn lock_scope(
    tx: &mut WriteTransaction,
    initiator: &Initiator,
    scope: WebhookScope,
) -> Result<(), OperationError> {
    match scope {
        WebhookScope::Service(service) => lock_managed_service(tx, initiator, service).await.map(drop),
        WebhookScope::Deployment => Ok(()),
    }
}
