//! Changes, pauses, resumes and deletes webhooks, and rotates their secrets.

use super::create::{check_url, lock_scope, refuse_managed_twin};
use crate::{
    domain::{
        audit::{AuditAction, AuditedObject, Initiator, NewAuditEntry},
        text::{Description, ManagedBy},
        webhook::{
            SECRET_OVERLAP, TargetStatus, WebhookScope, WebhookTarget, event::EventFilter, secret::WebhookSecret,
            url::TargetUrl,
        },
    },
    operations::{Context, NotFound, OperationError},
    store::{WriteTransaction, deployment, webhook_targets},
};
use countersign_identity::{Timestamp, WebhookId};
use secrecy::SecretString;

/// The changes to make. `None` leaves a field unchanged.
#[derive(Debug, Clone)]
pub struct WebhookChange {
    /// The URL that events are sent to.
    pub url: Option<TargetUrl>,
    /// The kinds of events that the webhook receives.
    pub events: Option<EventFilter>,
    /// Description of the webhook, as free text.
    pub description: Option<Description>,
    /// The new `managedBy` value.
    pub managed_by: Option<ManagedBy>,
    /// True pauses the webhook. False resumes a paused or disabled webhook.
    pub paused: Option<bool>,
}

/// Changes a webhook. A new URL also applies to pending deliveries.
pub async fn change_webhook(
    context: &Context,
    initiator: &Initiator,
    scope: WebhookScope,
    webhook: WebhookId,
    change: &WebhookChange,
) -> Result<WebhookTarget, OperationError> {
    if let Some(url) = &change.url {
        check_url(context, scope, url).await?;
    }
    let work = async |mut tx: WriteTransaction| {
        if scope == WebhookScope::Deployment && (change.url.is_some() || change.managed_by.is_some()) {
            // Locked before the webhook, as by its creation.
            deployment::lock(tx.conn()).await?;
        }
        let before = lock_webhook(&mut tx, initiator, scope, webhook).await?;
        let after = apply_change(&before, change.clone(), tx.now());
        if (&after.url, &after.managed_by) != (&before.url, &before.managed_by) {
            refuse_managed_twin(&webhook_targets::list(tx.conn(), scope).await?, &after)?;
        }
        let entry = NewAuditEntry::new(scope.chain(), AuditAction::WebhookChanged)
            .object(AuditedObject::Webhook(webhook))
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

/// Returns the changed webhook. Resuming a webhook also ends its failing period (the time in which every attempt failed).
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

/// Replaces the secret of a webhook. Returns the new secret, and the time until which the replaced secret also signs. A secret
/// older than the replaced secret stops signing at once.
pub async fn rotate_webhook_secret(
    context: &Context,
    initiator: &Initiator,
    scope: WebhookScope,
    webhook: WebhookId,
) -> Result<(SecretString, Timestamp), OperationError> {
    let secret = WebhookSecret::new(context.new_secret());
    let sealed = &context.keyring.seal_webhook_secret(webhook, &secret, context.rng.as_ref())?;
    let work = async |mut tx: WriteTransaction| {
        // Like a rotation of the master key, locks the deployment before the webhook.
        lock_scope(&mut tx, initiator, scope).await?;
        let sealed = sealed.for_current_master_key(tx.conn()).await?;
        lock_webhook_row(&mut tx, scope, webhook).await?;
        let until = tx.now().saturating_add(SECRET_OVERLAP);
        webhook_targets::rotate_secret(tx.conn(), webhook, sealed, until).await?;
        let entry = NewAuditEntry::new(scope.chain(), AuditAction::WebhookSecretRotated)
            .object(AuditedObject::Webhook(webhook));
        tx.audit(initiator, &entry).await?;
        Ok::<_, OperationError>(tx.commit(until).await?)
    };
    Ok((secret.reveal(), context.store.write("rotate_webhook_secret", work).await?))
}

/// Deletes a webhook and its pending deliveries.
pub async fn delete_webhook(
    context: &Context,
    initiator: &Initiator,
    scope: WebhookScope,
    webhook: WebhookId,
) -> Result<(), OperationError> {
    let work = async |mut tx: WriteTransaction| {
        let deleted = lock_webhook(&mut tx, initiator, scope, webhook).await?;
        let now = tx.now();
        webhook_targets::mark_deleted(tx.conn(), webhook, now).await?;
        let entry =
            NewAuditEntry::new(scope.chain(), AuditAction::WebhookDeleted).object(AuditedObject::Webhook(webhook));
        tx.audit(initiator, &entry.with_detail("host", deleted.url.host().to_string())).await?;
        Ok::<_, OperationError>(tx.commit(()).await?)
    };
    context.store.write("delete_webhook", work).await
}

/// Reads a webhook and locks its row until the transaction ends. Requires an initiator who may manage the scope.
pub(super) async fn lock_webhook(
    tx: &mut WriteTransaction,
    initiator: &Initiator,
    scope: WebhookScope,
    webhook: WebhookId,
) -> Result<WebhookTarget, OperationError> {
    lock_scope(tx, initiator, scope).await?;
    lock_webhook_row(tx, scope, webhook).await
}

async fn lock_webhook_row(
    tx: &mut WriteTransaction,
    scope: WebhookScope,
    webhook: WebhookId,
) -> Result<WebhookTarget, OperationError> {
    webhook_targets::lock(tx.conn(), scope, webhook).await?;
    webhook_targets::find(tx.conn(), scope, webhook).await?.ok_or(OperationError::NotFound(NotFound::Webhook))
}
