//! Make a target of events.

use crate::{
    domain::{
        audit::{AuditAction, Initiator, NewAuditEntry, Object},
        text::Description,
        webhook::{MOST_TARGETS, Place, Target, event::EventFilter, secret::WebhookSecret, url::TargetUrl},
    },
    operations::{Context, NotFound, OperationError},
    store::{Write, deployment, services, webhook_targets},
};
use countersign_identity::WebhookId;
use secrecy::SecretString;

/// What is asked for.
#[derive(Debug)]
pub struct NewWebhook {
    /// Where.
    pub url: TargetUrl,
    /// Of what.
    pub events: EventFilter,
    /// What it is for.
    pub description: Description,
}

/// Makes a target; the plain text of its secret is returned here and nowhere else.
pub async fn create_webhook(
    context: &Context,
    by: &Initiator,
    place: Place,
    request: NewWebhook,
) -> Result<(Target, SecretString), OperationError> {
    let NewWebhook { url, events, description } = request;
    reachable(context, &url).await?;
    let (id, secret, now) =
        (context.new_id(WebhookId::from_bits), WebhookSecret::new(context.new_secret()), context.now());
    let sealed = &context.keyring.seal_webhook_secret(id, &secret, context.rng.as_ref())?;
    let target = &Target {
        id,
        place,
        url,
        events,
        description,
        created_at: now,
        updated_at: now,
        paused_at: None,
        disabled: None,
        failing_since: None,
        previous_until: None,
    };
    let entry = &NewAuditEntry::new(place.chain(), AuditAction::WebhookCreated)
        .object(Object::Webhook(id))
        .detail("host", target.url.host().to_string())
        .detail("events", target.events.names());
    let work = async |mut tx: Write| {
        lock(&mut tx, place).await?;
        if webhook_targets::list(tx.conn(), place).await?.len() >= MOST_TARGETS {
            return Err(OperationError::Conflict(format!(
                "there are {MOST_TARGETS} webhooks already: delete one, or change it"
            )));
        }
        webhook_targets::insert(tx.conn(), target, sealed).await?;
        tx.audit(by, entry).await?;
        Ok(tx.commit(target.clone()).await?)
    };
    Ok((context.store.write("create_webhook", work).await?, secret.reveal()))
}

/// Whether a URL leads to where events may be sent.
pub(in crate::operations) async fn reachable(context: &Context, url: &TargetUrl) -> Result<(), OperationError> {
    context
        .guard
        .check(url)
        .await
        .map_err(|refused| OperationError::Invalid { field: "url", message: refused.as_str() })
}

/// Of several who make targets at one place, each sees what the one before has made.
async fn lock(tx: &mut Write, place: Place) -> Result<(), OperationError> {
    match place {
        Place::Service(service) if services::lock(tx.conn(), service).await? => Ok(()),
        Place::Service(_) => Err(OperationError::NotFound(NotFound::Service)),
        Place::Deployment => Ok(deployment::lock(tx.conn()).await?),
    }
}
