//! Creates, reads, changes, pauses, resumes and deletes webhooks, and rotates their secrets.

use crate::{
    domain::{
        audit::{AuditAction, AuditedObject, Initiator, NewAuditEntry},
        quota::{ExceededQuota, WEBHOOKS_PER_SERVICE},
        service::ServiceOrDeployment,
        text::{Description, ManagedBy},
        webhook::{
            SECRET_OVERLAP, TargetOwner, TargetStatus, WebhookTarget, address::HostRejection, event::EventFilter,
            secret::WebhookSecret, url::TargetUrl,
        },
    },
    operations::{
        Context, NotFound, OperationError, authorize::lock_managed_service, find::find_service,
        services::already_managed,
    },
    store::{WriteTransaction, deployment, webhook_targets},
};
use countersign_identity::{Timestamp, WebhookId};
use secrecy::SecretString;

#[derive(Debug)]
pub struct NewWebhook {
    pub url: TargetUrl,
    /// The kinds of events that the webhook receives.
    pub events: EventFilter,
    pub description: Description,
    /// The label of the declaration files that manage the webhook (`managedBy`), if any.
    pub managed_by: Option<ManagedBy>,
}

/// Creates a webhook. Only the creation of a webhook and the rotation of its secret return the secret in plain text.
pub async fn create_webhook(
    context: &Context,
    initiator: &Initiator,
    scope: ServiceOrDeployment,
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
    let entry = &webhook_entry(scope, AuditAction::WebhookCreated, id)
        .with_detail("host", target.url.host().to_string())
        .with_detail("events", target.events.names())
        .managed_by_if_changed(None, target.managed_by.as_ref());
    let work = async |mut tx: WriteTransaction| {
        // Only one request at a time creates webhooks in a scope, so that concurrent requests cannot exceed the quota.
        lock_scope(&mut tx, initiator, scope).await?;
        if scope == ServiceOrDeployment::Deployment {
            deployment::lock(tx.conn()).await?;
        }
        let existing = webhook_targets::list(tx.conn(), scope).await?;
        if existing.len() >= usize::try_from(WEBHOOKS_PER_SERVICE).unwrap_or(usize::MAX) {
            return Err(ExceededQuota::WebhooksPerService.into());
        }
        refuse_managed_duplicate(&existing, target)?;
        let sealed = sealed.for_current_master_key(tx.conn()).await?;
        webhook_targets::insert(tx.conn(), target, sealed).await?;
        tx.audit(initiator, entry).await?;
        Ok::<_, OperationError>(tx.commit(target.clone()).await?)
    };
    Ok((context.store.write("create_webhook", work).await?, secret.reveal()))
}

/// Lists the webhooks of a scope (a service, or the whole Countersign deployment), oldest first.
pub async fn list_webhooks(
    context: &Context,
    scope: ServiceOrDeployment,
) -> Result<Vec<WebhookTarget>, OperationError> {
    let mut read = context.store.read().await?;
    if let ServiceOrDeployment::Service(service) = scope {
        find_service(read.conn(), service).await?;
    }
    Ok(webhook_targets::list(read.conn(), scope).await?)
}

pub async fn read_webhook(
    context: &Context,
    scope: ServiceOrDeployment,
    webhook: WebhookId,
) -> Result<WebhookTarget, OperationError> {
    let target = webhook_targets::find(context.store.read().await?.conn(), scope, webhook).await?;
    Ok(target.ok_or(NotFound::Webhook)?)
}

/// The changes to make to a webhook. `None` leaves a field unchanged.
#[derive(Debug, Clone)]
pub struct WebhookChange {
    pub url: Option<TargetUrl>,
    pub events: Option<EventFilter>,
    pub description: Option<Description>,
    pub managed_by: Option<ManagedBy>,
    /// True pauses the webhook. False resumes a paused or disabled webhook.
    pub paused: Option<bool>,
}

/// Changes a webhook. A new URL also applies to pending deliveries.
pub async fn change_webhook(
    context: &Context,
    initiator: &Initiator,
    scope: ServiceOrDeployment,
    webhook: WebhookId,
    change: &WebhookChange,
) -> Result<WebhookTarget, OperationError> {
    if let Some(url) = &change.url {
        check_url(context, scope, url).await?;
    }
    let work = async |mut tx: WriteTransaction| {
        if scope == ServiceOrDeployment::Deployment && (change.url.is_some() || change.managed_by.is_some()) {
            // No other webhook must get the same URL and `managedBy` meanwhile. The creation of a webhook takes this lock, too.
            deployment::lock(tx.conn()).await?;
        }
        let before = lock_webhook(&mut tx, initiator, scope, webhook).await?;
        let after = apply_change(&before, change.clone(), tx.now());
        if (&after.url, &after.managed_by) != (&before.url, &before.managed_by) {
            refuse_managed_duplicate(&webhook_targets::list(tx.conn(), scope).await?, &after)?;
        }
        let entry = webhook_entry(scope, AuditAction::WebhookChanged, webhook)
            .detail_if_changed("host", before.url.host().to_string(), after.url.host().to_string())
            .detail_if_changed("events", before.events.names(), after.events.names())
            .detail_if_changed("status", before.status().as_str(), after.status().as_str())
            .managed_by_if_changed(before.managed_by.as_ref(), after.managed_by.as_ref());
        if after.url != before.url || after.description != before.description || !entry.details.is_empty() {
            let resumed = after.status() == TargetStatus::Active && before.status() != TargetStatus::Active;
            webhook_targets::update(tx.conn(), &after, resumed).await?;
            tx.audit(initiator, &entry).await?;
            return Ok(tx.commit(after).await?);
        }
        Ok::<_, OperationError>(tx.commit(before).await?)
    };
    let target = context.store.write("change_webhook", work).await?;
    context.dispatcher_wakeup.notify_one();
    Ok(target)
}

/// Returns the changed webhook. If the change resumes the webhook, its failing period (in which every attempt failed) is over.
fn apply_change(before: &WebhookTarget, change: WebhookChange, now: Timestamp) -> WebhookTarget {
    let WebhookChange { url, events, description, managed_by, paused } = change;
    let before = before.clone();
    let (paused_at, disabled, failing_since) = match (paused, before.status()) {
        (None, _) | (Some(true), TargetStatus::Paused) | (Some(false), TargetStatus::Active) => {
            (before.paused_at, before.disabled, before.failing_since)
        }
        (Some(true), TargetStatus::Active | TargetStatus::Disabled) => {
            (Some(now), before.disabled, before.failing_since)
        }
        (Some(false), TargetStatus::Paused | TargetStatus::Disabled) => (None, None, None),
    };
    WebhookTarget {
        url: url.unwrap_or(before.url),
        events: events.unwrap_or(before.events),
        description: description.unwrap_or(before.description),
        managed_by: managed_by.or(before.managed_by),
        updated_at: now,
        paused_at,
        disabled,
        failing_since,
        ..before
    }
}

/// Replaces the secret of a webhook. Returns the new secret, and until when we also sign with the replaced secret. An even older
/// secret stops signing at once.
pub async fn rotate_webhook_secret(
    context: &Context,
    initiator: &Initiator,
    scope: ServiceOrDeployment,
    webhook: WebhookId,
) -> Result<(SecretString, Timestamp), OperationError> {
    let secret = WebhookSecret::new(context.new_secret());
    let sealed = &context.keyring.seal_webhook_secret(webhook, &secret, context.rng.as_ref())?;
    let work = async |mut tx: WriteTransaction| {
        lock_scope(&mut tx, initiator, scope).await?;
        // This locks the deployment. A rotation of the master key also locks the deployment first, and then the webhook.
        let sealed = sealed.for_current_master_key(tx.conn()).await?;
        lock_webhook_row(&mut tx, scope, webhook).await?;
        let until = tx.now().saturating_add(SECRET_OVERLAP);
        webhook_targets::rotate_secret(tx.conn(), webhook, sealed, until).await?;
        tx.audit(initiator, &webhook_entry(scope, AuditAction::WebhookSecretRotated, webhook)).await?;
        Ok::<_, OperationError>(tx.commit(until).await?)
    };
    Ok((secret.reveal(), context.store.write("rotate_webhook_secret", work).await?))
}

/// Deletes a webhook. It receives nothing any more, and housekeeping deletes its deliveries later.
pub async fn delete_webhook(
    context: &Context,
    initiator: &Initiator,
    scope: ServiceOrDeployment,
    webhook: WebhookId,
) -> Result<(), OperationError> {
    let work = async |mut tx: WriteTransaction| {
        let deleted = lock_webhook(&mut tx, initiator, scope, webhook).await?;
        let now = tx.now();
        webhook_targets::mark_deleted(tx.conn(), webhook, now).await?;
        let entry = webhook_entry(scope, AuditAction::WebhookDeleted, webhook);
        tx.audit(initiator, &entry.with_detail("host", deleted.url.host().to_string())).await?;
        Ok::<_, OperationError>(tx.commit(()).await?)
    };
    context.store.write("delete_webhook", work).await
}

pub(super) fn webhook_entry(scope: ServiceOrDeployment, action: AuditAction, webhook: WebhookId) -> NewAuditEntry {
    NewAuditEntry::new(scope, action).object(AuditedObject::Webhook(webhook))
}

/// Refuses a webhook with a `managed_by` if its scope has another webhook with the same URL and `managed_by`. The caller must hold the
/// lock on the scope.
fn refuse_managed_duplicate(existing: &[WebhookTarget], target: &WebhookTarget) -> Result<(), OperationError> {
    let is_duplicate = |other: &WebhookTarget| {
        other.id != target.id && other.url == target.url && other.managed_by == target.managed_by
    };
    if target.managed_by.is_some() && existing.iter().any(is_duplicate) {
        return Err(already_managed("webhook", &target.url.to_string(), target.managed_by.as_ref()));
    }
    Ok(())
}

/// Rejects a URL if its host does not resolve to an allowed address.
async fn check_url(context: &Context, scope: ServiceOrDeployment, url: &TargetUrl) -> Result<(), OperationError> {
    let owner = match scope {
        ServiceOrDeployment::Service(service) => {
            TargetOwner::Person(find_service(context.store.read().await?.conn(), service).await?.owner)
        }
        ServiceOrDeployment::Deployment => TargetOwner::Deployment,
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

/// Locks the service of a scope until the transaction ends, and requires again that the initiator may manage it. Does nothing for the
/// deployment, which every administrator may manage.
async fn lock_scope(
    tx: &mut WriteTransaction,
    initiator: &Initiator,
    scope: ServiceOrDeployment,
) -> Result<(), OperationError> {
    match scope {
        ServiceOrDeployment::Service(service) => lock_managed_service(tx, initiator, service).await.map(drop),
        ServiceOrDeployment::Deployment => Ok(()),
    }
}

/// Reads a webhook and locks its row until the transaction ends. Requires an initiator who may manage the scope.
pub(super) async fn lock_webhook(
    tx: &mut WriteTransaction,
    initiator: &Initiator,
    scope: ServiceOrDeployment,
    webhook: WebhookId,
) -> Result<WebhookTarget, OperationError> {
    lock_scope(tx, initiator, scope).await?;
    lock_webhook_row(tx, scope, webhook).await
}

async fn lock_webhook_row(
    tx: &mut WriteTransaction,
    scope: ServiceOrDeployment,
    webhook: WebhookId,
) -> Result<WebhookTarget, OperationError> {
    webhook_targets::lock(tx.conn(), scope, webhook).await?;
    Ok(webhook_targets::find(tx.conn(), scope, webhook).await?.ok_or(NotFound::Webhook)?)
}
