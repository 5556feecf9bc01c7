//! Webhooks and deliveries as text and JSON.

use crate::cli::prelude::{CliError, CommandOutput, Rows, details};
use countersign_client::api::{Webhook, WebhookDelivery};
use serde_json::json;

pub fn webhooks(webhooks: &[Webhook]) -> CommandOutput {
    let rows = Rows::of(webhooks)
        .fixed("ID", |webhook| webhook.webhook_id.clone())
        .fixed("STATUS", status)
        .text("URL", |webhook| webhook.url.clone())
        .text("EVENTS", |webhook| webhook.events.join(","))
        .text("DESCRIPTION", |webhook| text_or_dash(webhook.description.as_ref()));
    CommandOutput::list(rows)
}

pub fn webhook(webhook: &Webhook) -> CommandOutput {
    let Webhook {
        webhook_id,
        service_id,
        url,
        events,
        description,
        managed_by,
        status: _,
        disabled_reason: _,
        failing_since,
        previous_secret_expires_at,
        created_at,
        updated_at,
    } = webhook;
    let mut rows = vec![
        ("webhook", webhook_id.clone()),
        ("service", service_id.clone().unwrap_or_else(|| "all".into())),
        ("url", url.clone()),
        ("events", events.join(", ")),
        ("description", text_or_dash(description.as_ref())),
        ("status", status(webhook)),
        ("failing since", text_or_dash(failing_since.as_ref())),
        ("old secret until", text_or_dash(previous_secret_expires_at.as_ref())),
        ("created", created_at.clone()),
        ("changed", updated_at.clone()),
    ];
    rows.extend(managed_by.clone().map(|managed_by| ("managed by", managed_by)));
    CommandOutput::new(details(rows), json!(webhook))
}

fn status(webhook: &Webhook) -> String {
    match &webhook.disabled_reason {
        Some(reason) => format!("{} ({reason})", webhook.status),
        None => webhook.status.clone(),
    }
}

pub fn deliveries(deliveries: &[WebhookDelivery]) -> CommandOutput {
    let rows = Rows::of(deliveries)
        .fixed("ID", |delivery| delivery.event_id.clone())
        .fixed("EVENT", |delivery| delivery.event.clone())
        .time("OCCURRED", |delivery| delivery.occurred_at.clone())
        .fixed("STATUS", |delivery| delivery.status.clone())
        .fixed("ATTEMPTS", |delivery| delivery.attempts.to_string())
        .fixed("RESPONSE", response)
        .time("NEXT ATTEMPT", |delivery| text_or_dash(delivery.next_attempt_at.as_ref()));
    CommandOutput::list(rows)
}

pub fn delivery(delivery: &WebhookDelivery) -> CommandOutput {
    let WebhookDelivery {
        event_id,
        event,
        occurred_at,
        status,
        attempts,
        next_attempt_at,
        last_attempt_at,
        response_status: _,
        response_body,
        failure: _,
        payload,
    } = delivery;
    let text = details([
        ("event", event_id.clone()),
        ("kind", event.clone()),
        ("occurred", occurred_at.clone()),
        ("status", status.clone()),
        ("attempts", attempts.to_string()),
        ("last attempt", text_or_dash(last_attempt_at.as_ref())),
        ("next attempt", text_or_dash(next_attempt_at.as_ref())),
        ("response", response(delivery)),
        ("response body", text_or_dash(response_body.as_ref())),
    ]);
    let payload = payload.as_ref().map(|payload| format!("\n\n{payload:#}")).unwrap_or_default();
    CommandOutput::new(format!("{text}{payload}"), json!(delivery))
}

/// The result of the last attempt: the status of the response, why the attempt failed, or both.
fn response(delivery: &WebhookDelivery) -> String {
    match (delivery.response_status, delivery.failure.as_deref()) {
        (None, None) => "-".into(),
        (None, Some(failure)) => failure.into(),
        (Some(status), None | Some("status")) => status.to_string(),
        (Some(status), Some(failure)) => format!("{status} {failure}"),
    }
}

/// The error for a delivery that failed, with the next step by its cause.
pub fn failure(delivery: &WebhookDelivery) -> CliError {
    let status = delivery.response_status.map_or_else(|| "without a status".into(), |status| status.to_string());
    let failed =
        |cause: String, next: &str| CliError::failed(format!("the event was not delivered: {cause}")).with_next(next);
    match delivery.failure.as_deref().unwrap_or_default() {
        "status" => failed(
            format!("the receiver answered {status}"),
            "the receiver must answer 2xx; the body of its response may state the cause",
        ),
        "timeout" => failed("the receiver did not answer in time".into(), "answer first, then process the event"),
        "connection" => {
            failed("the receiver refused the connection".into(), "is the receiver running, and is the URL right?")
        }
        "tls" => failed(
            "TLS failed".into(),
            "is the receiver's certificate valid for the name in the URL, and signed by a known authority?",
        ),
        "dns" => failed("the host name of the URL cannot be resolved".into(), "is the URL right?"),
        "address_refused" => failed(
            "the address of the receiver is not public".into(),
            "use a public address; the operator can allow others in webhooks.allowed_networks",
        ),
        "redirect" => failed(
            format!("the receiver redirects ({status})"),
            "redirects are not followed; set the final URL: countersign webhook change WEBHOOK --target URL",
        ),
        "gone" => failed(
            format!("the receiver answered {status}"),
            "410 disables the webhook; countersign webhook resume WEBHOOK enables it",
        ),
        other => failed(format!("the attempt failed: {other}"), "countersign webhook show WEBHOOK"),
    }
}

fn text_or_dash(value: Option<&String>) -> String {
    value.map(|value| value.trim()).filter(|value| !value.is_empty()).unwrap_or("-").to_owned()
}
