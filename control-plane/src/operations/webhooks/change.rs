//! Change a target of events: where it is, what it gets, whether it gets anything; or its secret.

use super::create::reachable;
use crate::{
    domain::{
        audit::{AuditAction, Initiator, NewAuditEntry, Object},
        text::Description,
        webhook::{
            BOTH_SECRETS, Place, Target, TargetStatus, event::EventFilter, secret::WebhookSecret, url::TargetUrl,
        },
    },
    operations::{Context, NotFound, OperationError},
    store::{Write, webhook_targets},
};
use countersign_identity::{Timestamp, WebhookId};
use secrecy::SecretString;

/// What is to be changed; what is absent stays.
#[derive(Debug, Clone)]
pub struct WebhookChange {
    /// Where it is.
    pub url: Option<TargetUrl>,
    /// What it gets.
    pub events: Option<EventFilter>,
    /// What it is for.
    pub description: Option<Description>,
    /// Whether it is paused.
    pub paused: Option<bool>,
}

/// Changes a target. What is on its way to it goes where it is then.
pub async fn change_webhook(
    context: &Context,
    by: &Initiator,
    place: Place,
    webhook: WebhookId,
    change: &WebhookChange,
) -> Result<Target, OperationError> {
    if let Some(url) = &change.url {
        reachable(context, url).await?;
    }
    let work = async |mut tx: Write| {
        let before = locked(&mut tx, place, webhook).await?;
        let after = changed(&before, change.clone(), tx.now());
        let entry = NewAuditEntry::new(place.chain(), AuditAction::WebhookChanged)
            .object(Object::Webhook(webhook))
            .changed("host", before.url.host().to_string(), after.url.host().to_string())
            .changed("events", before.events.names(), after.events.names())
            .changed("status", before.status().as_str(), after.status().as_str());
        if after.url != before.url || after.description != before.description || !entry.details.is_empty() {
            let resumed = after.status() == TargetStatus::Active && before.status() != TargetStatus::Active;
            webhook_targets::update(tx.conn(), &after, resumed).await?;
            tx.audit(by, &entry).await?;
            return Ok(tx.commit(after).await?);
        }
        Ok::<_, OperationError>(tx.commit(before).await?)
    };
    let target = context.store.write("change_webhook", work).await?;
    context.pulse.ring();
    Ok(target)
}

/// What is active again is given its time anew.
fn changed(before: &Target, change: WebhookChange, now: Timestamp) -> Target {
    let WebhookChange { url, events, description, paused } = change;
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
    Target {
        url: url.unwrap_or(before.url),
        events: events.unwrap_or(before.events),
        description: description.unwrap_or(before.description),
        updated_at: now,
        paused_at,
        disabled,
        failing_since,
        ..before
    }
}

/// Gives a target a new secret, which is returned here and nowhere else, with the instant until when the one of before
/// signs too. One that was still signing beside the present one signs no more.
pub async fn rotate_webhook_secret(
    context: &Context,
    by: &Initiator,
    place: Place,
    webhook: WebhookId,
) -> Result<(SecretString, Timestamp), OperationError> {
    let secret = WebhookSecret::new(context.new_secret());
    let sealed = &context.keyring.seal_webhook_secret(webhook, &secret, context.rng.as_ref())?;
    let work = async |mut tx: Write| {
        locked(&mut tx, place, webhook).await?;
        let until = tx.now().saturating_add(BOTH_SECRETS);
        webhook_targets::rotate(tx.conn(), webhook, sealed, until).await?;
        let entry =
            NewAuditEntry::new(place.chain(), AuditAction::WebhookSecretRotated).object(Object::Webhook(webhook));
        tx.audit(by, &entry).await?;
        Ok::<_, OperationError>(tx.commit(until).await?)
    };
    Ok((secret.reveal(), context.store.write("rotate_webhook_secret", work).await?))
}

/// Deletes a target, with what is on its way to it.
pub async fn delete_webhook(
    context: &Context,
    by: &Initiator,
    place: Place,
    webhook: WebhookId,
) -> Result<(), OperationError> {
    let work = async |mut tx: Write| {
        let found = locked(&mut tx, place, webhook).await?;
        let now = tx.now();
        webhook_targets::delete(tx.conn(), webhook, now).await?;
        let entry = NewAuditEntry::new(place.chain(), AuditAction::WebhookDeleted).object(Object::Webhook(webhook));
        tx.audit(by, &entry.detail("host", found.url.host().to_string())).await?;
        Ok::<_, OperationError>(tx.commit(()).await?)
    };
    context.store.write("delete_webhook", work).await
}

/// The target, which nobody else changes until the transaction ends.
pub(in crate::operations) async fn locked(
    tx: &mut Write,
    place: Place,
    webhook: WebhookId,
) -> Result<Target, OperationError> {
    webhook_targets::lock(tx.conn(), place, webhook).await?;
    webhook_targets::find(tx.conn(), place, webhook).await?.ok_or(OperationError::NotFound(NotFound::Webhook))
}
