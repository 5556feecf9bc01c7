//! Targets and deliveries as people read them, and for programs.

use crate::cli::{Said, said::table};
use countersign_client::api::{Webhook, WebhookDelivery};
use serde_json::json;

/// Targets under each other.
pub fn targets(targets: &[Webhook]) -> Said {
    let head = ["ID", "STATUS", "URL", "EVENTS", "DESCRIPTION"].map(str::to_owned);
    let row = |target: &Webhook| {
        let (events, description) = (target.events.join(","), or_none(target.description.as_ref()));
        [target.webhook_id.clone(), status(target), target.url.clone(), events, description]
    };
    let rows: Vec<_> = std::iter::once(head).chain(targets.iter().map(row)).collect();
    Said::new(table(&rows), json!(targets))
}

/// All of one target.
pub fn target(target: &Webhook) -> Said {
    let Webhook {
        webhook_id,
        service_id,
        url,
        events,
        description,
        status: _,
        disabled_reason: _,
        failing_since,
        previous_secret_expires_at,
        created_at,
        updated_at,
    } = target;
    let rows = [
        ["webhook", webhook_id],
        ["service", service_id.as_deref().unwrap_or("all")],
        ["url", url],
        ["events", &events.join(", ")],
        ["description", &or_none(description.as_ref())],
        ["status", &status(target)],
        ["failing since", &or_none(failing_since.as_ref())],
        ["old secret until", &or_none(previous_secret_expires_at.as_ref())],
        ["created", created_at],
        ["changed", updated_at],
    ];
    Said::new(table(&rows.map(|row| row.map(str::to_owned))), json!(target))
}

fn status(target: &Webhook) -> String {
    match &target.disabled_reason {
        Some(reason) => format!("{} ({reason})", target.status),
        None => target.status.clone(),
    }
}

/// Deliveries under each other.
pub fn deliveries(deliveries: &[WebhookDelivery]) -> Said {
    let head = ["ID", "EVENT", "OCCURRED", "STATUS", "TRIES", "ANSWER", "NEXT TRY"].map(str::to_owned);
    let row = |delivery: &WebhookDelivery| {
        let (tries, next) = (delivery.attempts.to_string(), or_none(delivery.next_attempt_at.as_ref()));
        let (id, event, at) = (delivery.event_id.clone(), delivery.event.clone(), delivery.occurred_at.clone());
        [id, event, at, delivery.status.clone(), tries, answer(delivery), next]
    };
    let rows: Vec<_> = std::iter::once(head).chain(deliveries.iter().map(row)).collect();
    Said::new(table(&rows), json!(deliveries))
}

/// All of one delivery.
pub fn delivery(delivery: &WebhookDelivery) -> Said {
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
    let rows = [
        ["event", event_id],
        ["kind", event],
        ["occurred", occurred_at],
        ["status", status],
        ["tries", &attempts.to_string()],
        ["last try", &or_none(last_attempt_at.as_ref())],
        ["next try", &or_none(next_attempt_at.as_ref())],
        ["answer", &answer(delivery)],
        ["it said", &or_none(response_body.as_ref())],
    ];
    let text = table(&rows.map(|row| row.map(str::to_owned)));
    let payload = payload.as_ref().map(|payload| format!("\n\n{payload:#}")).unwrap_or_default();
    Said::new(format!("{text}{payload}"), json!(delivery))
}

/// What came back last: a status, what went wrong, or both.
pub fn answer(delivery: &WebhookDelivery) -> String {
    match (delivery.response_status, delivery.failure.as_deref()) {
        (None, None) => "-".into(),
        (None, Some(failure)) => failure.into(),
        (Some(status), None | Some("status")) => status.to_string(),
        (Some(status), Some(failure)) => format!("{status} {failure}"),
    }
}

/// Why it was not delivered, as a sentence goes on, and what can be done.
pub fn explanation(delivery: &WebhookDelivery) -> (String, &'static str) {
    let answered = delivery.response_status.map_or_else(|| "nothing".into(), |status| status.to_string());
    match delivery.failure.as_deref().unwrap_or_default() {
        "status" => (format!("it answered {answered}"), "its receiver must answer 2xx; what it said may tell why"),
        "timeout" => ("it did not answer in time".into(), "answer first, and do the work afterwards"),
        "connection" => ("nobody answers there".into(), "does the receiver run, and is the URL right?"),
        "tls" => ("TLS fails".into(), "is its certificate good for the name in the URL, and its authority known?"),
        "dns" => ("its name is not known".into(), "is the URL right?"),
        "address_refused" => (
            "its address is not public".into(),
            "take a public one; the operator may allow others in webhooks.allowed_networks",
        ),
        "redirect" => (
            format!("it redirects ({answered})"),
            "no redirect is followed: countersign webhook change ID --target URL, with the URL where it leads",
        ),
        "gone" => (format!("it answered {answered}"), "it wants no events any more, and is disabled"),
        other => (format!("it failed: {other}"), "countersign webhook show ID"),
    }
}

fn or_none(value: Option<&String>) -> String {
    value.map(|value| value.trim()).filter(|value| !value.is_empty()).unwrap_or("-").to_owned()
}
