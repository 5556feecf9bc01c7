//! What became of events: a test that waits for its answer, listings, and replays.

use super::{Desk, One, shown};
use crate::cli::{
    Failure, Said,
    context::{Context, event_id, missing},
    said::table,
    when::ago,
};
use clap::{Args, ValueEnum};
use countersign_client::{
    ApiError,
    api::{Page, WebhookDelivery},
};
use jiff::Timestamp;
use serde_json::json;
use std::time::Duration;

/// Deliveries that the API tells at once, at the most.
const LARGEST_PAGE: usize = 200;

/// How long a test waits: longer than a try may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long it waits before it looks again: at first, and at last, for looking counts against the limits of the service.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

#[derive(Args)]
pub struct Deliveries {
    #[command(flatten)]
    one: One,
    /// Only this one, with what is sent
    #[arg(long, value_name = "EVENT", conflicts_with_all = ["status", "limit", "offset"])]
    event: Option<String>,
    /// Only those in this state
    #[arg(long, value_enum)]
    status: Option<Status>,
    /// How many, at the most
    #[arg(long, default_value_t = 50)]
    limit: usize,
    /// After how many of the newest it begins
    #[arg(long, default_value_t = 0)]
    offset: usize,
}

#[derive(Args)]
pub struct Replay {
    #[command(flatten)]
    one: One,
    /// This event
    #[arg(long, value_name = "EVENT", conflicts_with_all = ["since", "status"])]
    event: Option<String>,
    /// What happened since then: 2030-01-31T12:00:00Z, or how long ago: 30m, 8h, 7d
    #[arg(long, value_name = "WHEN", value_parser = ago)]
    since: Option<Timestamp>,
    /// Of that only what is in this state; left out: both
    #[arg(long, value_enum)]
    status: Option<Ended>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Status {
    /// To be tried, for the first time or again
    Pending,
    /// Answered with 2xx
    Delivered,
    /// Given up
    Dead,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Ended {
    /// Answered with 2xx
    Delivered,
    /// Given up
    Dead,
}

/// Sends an event and waits for what becomes of it.
pub async fn test(context: &Context, one: One) -> Result<Said, Failure> {
    let (desk, id) = one.desk(context)?;
    let event = desk.api.test_webhook(desk.manager, &desk.targets, &id).await?;
    let settled = tokio::time::timeout(PATIENCE, settled(&desk, &id, &event)).await;
    let delivery = match settled {
        Ok(settled) => settled?,
        Err(_) => desk.api.read_delivery(desk.manager, &desk.targets, &id, &event).await?,
    };
    let flag = desk.flag();
    let failure = match delivery.status.as_str() {
        "delivered" => None,
        "pending" => {
            let text = format!("nothing is known of it after {} s", PATIENCE.as_secs());
            Some(format!("{text}\nNext: countersign webhook deliveries{flag} {id} --event {event}"))
        }
        _ => {
            let (why, next) = shown::explanation(&delivery);
            Some(format!("the event was not delivered: {why}\nNext: {next}"))
        }
    };
    let next = format!("Next: countersign webhook deliveries{flag} {id}");
    let note = if failure.is_none() { next } else { String::new() };
    Ok(shown::delivery(&delivery).noting(note).failing(failure.map(Failure::Failed)))
}

/// The delivery when it is pending no longer.
async fn settled(desk: &Desk<'_>, id: &str, event: &str) -> Result<WebhookDelivery, ApiError> {
    let (mut pause, longest) = PAUSES;
    loop {
        let delivery = desk.api.read_delivery(desk.manager, &desk.targets, id, event).await?;
        if delivery.status != "pending" {
            return Ok(delivery);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(longest);
    }
}

/// Lists what was and is to be delivered, or shows one.
pub async fn deliveries(context: &Context, asked: Deliveries) -> Result<Said, Failure> {
    let Deliveries { one, event, status, limit, offset } = asked;
    let (desk, id) = one.desk(context)?;
    if let Some(event) = event {
        let found = desk.api.read_delivery(desk.manager, &desk.targets, &id, &event_id(event)?).await;
        return found.map(|delivery| shown::delivery(&delivery)).map_err(|error| unheard_of(error, &desk, &id));
    }
    let status = status.map(|status| match status {
        Status::Pending => "pending",
        Status::Delivered => "delivered",
        Status::Dead => "dead",
    });
    let mut found = Vec::new();
    while found.len() < limit {
        let (wanted, from) = (LARGEST_PAGE.min(limit - found.len()), offset.saturating_add(found.len()));
        let page = desk.api.list_deliveries(desk.manager, &desk.targets, &id, status, (wanted, from)).await?;
        let Page { data, pagination } = page;
        let more = pagination.has_more && !data.is_empty();
        found.extend(data);
        if !more {
            break;
        }
    }
    Ok(shown::deliveries(&found))
}

/// Delivers once more.
pub async fn replay(context: &Context, asked: Replay) -> Result<Said, Failure> {
    let Replay { one, event, since, status } = asked;
    let (desk, id) = one.desk(context)?;
    let replayed = match (event, since) {
        (Some(event), _) => desk
            .api
            .replay_delivery(desk.manager, &desk.targets, &id, &event_id(event)?)
            .await
            .map_err(|error| unheard_of(error, &desk, &id))?,
        (None, Some(since)) => {
            let status = status.map(|status| match status {
                Ended::Delivered => "delivered",
                Ended::Dead => "dead",
            });
            desk.api.replay_since(desk.manager, &desk.targets, &id, &since.to_string(), status).await?
        }
        (None, None) => return Err(missing("what is to be delivered once more", "--event EVENT or --since WHEN")),
    };
    let text = table(&[["webhook".into(), id.clone()], ["replayed".into(), replayed.to_string()]]);
    let value = json!({ "replayed": replayed, "webhookId": id });
    Ok(Said::new(text, value).noting(format!("Next: countersign webhook deliveries{} {id}", desk.flag())))
}

/// The target never got this event, or it is too long ago.
fn unheard_of(error: ApiError, desk: &Desk<'_>, id: &str) -> Failure {
    Failure::advised(error, "NOT_FOUND", || {
        format!("`countersign webhook deliveries{} {id}` shows what there is", desk.flag())
    })
}
