//! Sends test events, lists deliveries and replays them.

use super::{
    display,
    scope::{ScopedApi, SelectedWebhook, WebhookArgs},
};
use crate::cli::{
    context::Context,
    error::CliError,
    ids::event_id,
    output::{CommandOutput, value_name},
    table::details,
    time::parse_past_time,
};
use clap::{Args, ValueEnum};
use countersign_client::{
    ApiError,
    api::{PageStart, WebhookDelivery},
};
use jiff::Timestamp;
use serde_json::json;
use std::time::Duration;

/// The largest page that the API serves.
const LARGEST_PAGE: usize = 200;

/// How long `countersign webhook test` waits for the delivery: longer than the timeout of an attempt.
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// The first and the longest pause between polls of `countersign webhook test`. The pauses between polls grow, because
/// polls count against the rate limit.
const POLL_PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

#[derive(Args)]
pub struct DeliveriesArgs {
    #[command(flatten)]
    webhook: WebhookArgs,
    /// Only this event, with the body of its request
    #[arg(long, value_name = "EVENT", conflicts_with_all = ["status", "limit", "offset", "all"])]
    event: Option<String>,
    /// Only deliveries of this status
    #[arg(long, value_enum)]
    status: Option<DeliveryStatus>,
    /// The maximum number of deliveries
    #[arg(long, default_value_t = 50)]
    limit: usize,
    /// How many of the newest deliveries to skip
    #[arg(long, default_value_t = 0)]
    offset: usize,
    /// All deliveries, whatever their number
    #[arg(long, conflicts_with = "limit")]
    all: bool,
}

#[derive(Args)]
pub struct ReplayArgs {
    #[command(flatten)]
    webhook: WebhookArgs,
    /// The event with this id
    #[arg(long, value_name = "EVENT", conflicts_with_all = ["since", "status"])]
    event: Option<String>,
    /// The events since this time: 2030-01-31T12:00:00Z, 2030-01-31, or 30m, 8h or 7d ago
    #[arg(long, value_name = "TIME", value_parser = parse_past_time)]
    since: Option<Timestamp>,
    /// With --since, only deliveries of this status [default: both]
    #[arg(long, value_enum)]
    status: Option<FinalStatus>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum DeliveryStatus {
    /// Another attempt is due
    Pending,
    /// The receiver answered 2xx
    Delivered,
    /// All attempts failed
    Dead,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum FinalStatus {
    /// The receiver answered 2xx
    Delivered,
    /// All attempts failed
    Dead,
}

/// Sends a test event and waits for its delivery.
pub async fn test(context: &Context, args: WebhookArgs) -> Result<CommandOutput, CliError> {
    let SelectedWebhook { scoped, id } = args.api(context).await?;
    let event = scoped.api.test_webhook(&scoped.credential, &scoped.scope, &id).await?;
    let finished = tokio::time::timeout(TEST_TIMEOUT, wait_for_final_status(&scoped, &id, &event)).await;
    let delivery = match finished {
        Ok(result) => result?,
        Err(_) => scoped.api.read_delivery(&scoped.credential, &scoped.scope, &id, &event).await?,
    };
    let option = scoped.option();
    let error = match delivery.status.as_str() {
        "delivered" => None,
        "pending" => {
            let text = format!("the event was not delivered within {} s", TEST_TIMEOUT.as_secs());
            let next = format!("countersign webhook deliveries{option} {id} --event {event}");
            Some(CliError::failed(text).with_next(next))
        }
        _ => {
            let (cause, next) = display::failure_and_next(&delivery);
            Some(CliError::failed(format!("the event was not delivered: {cause}")).with_next(next))
        }
    };
    let next = format!("Next: countersign webhook deliveries{option} {id}");
    let note = if error.is_none() { next } else { String::new() };
    Ok(display::delivery(&delivery).with_note(note).with_error(error))
}

/// Polls until the delivery is no longer pending.
async fn wait_for_final_status(scoped: &ScopedApi, id: &str, event: &str) -> Result<WebhookDelivery, ApiError> {
    let (mut pause, longest) = POLL_PAUSES;
    loop {
        let delivery = scoped.api.read_delivery(&scoped.credential, &scoped.scope, id, event).await?;
        if delivery.status != "pending" {
            return Ok(delivery);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(longest);
    }
}

/// Lists deliveries, or shows one.
pub async fn deliveries(context: &Context, args: DeliveriesArgs) -> Result<CommandOutput, CliError> {
    let DeliveriesArgs { webhook, event, status, limit, offset, all } = args;
    let SelectedWebhook { scoped, id } = webhook.api(context).await?;
    if let Some(event) = event {
        let result = scoped.api.read_delivery(&scoped.credential, &scoped.scope, &id, &event_id(event)?).await;
        return result
            .map(|delivery| display::delivery(&delivery))
            .map_err(|error| with_deliveries_hint(error, &scoped, &id));
    }
    let status = status.map(value_name);
    let limit = if all { usize::MAX } else { limit };
    let (mut deliveries, mut start) = (Vec::new(), Some(PageStart::Offset(offset)));
    while let Some(from) = start.take_if(|_| deliveries.len() < limit) {
        let page = (LARGEST_PAGE.min(limit - deliveries.len()), &from);
        let page = scoped.api.list_deliveries(&scoped.credential, &scoped.scope, &id, status.as_deref(), page).await?;
        start = page.next();
        deliveries.extend(page.data);
    }
    let note = if start.is_some() { "Next: --all or --limit shows more" } else { "" };
    Ok(display::deliveries(&deliveries).with_note(note))
}

/// Delivers events again.
pub async fn replay(context: &Context, args: ReplayArgs) -> Result<CommandOutput, CliError> {
    let ReplayArgs { webhook, event, since, status } = args;
    let SelectedWebhook { scoped, id } = webhook.api(context).await?;
    let replayed = match (event, since) {
        (Some(event), _) => scoped
            .api
            .replay_delivery(&scoped.credential, &scoped.scope, &id, &event_id(event)?)
            .await
            .map_err(|error| with_deliveries_hint(error, &scoped, &id))?,
        (None, Some(since)) => {
            let status = status.map(value_name);
            scoped
                .api
                .replay_since(&scoped.credential, &scoped.scope, &id, &since.to_string(), status.as_deref())
                .await?
        }
        (None, None) => return Err(CliError::missing("what to deliver again", "pass --event EVENT or --since TIME")),
    };
    let text = details([("webhook", id.clone()), ("replayed", replayed.to_string())]);
    let json = json!({ "replayed": replayed, "webhookId": id });
    let note = format!("Next: countersign webhook deliveries{} {id}", scoped.option());
    Ok(CommandOutput::new(text, json).with_note(note))
}

/// Adds a hint to the error for a delivery that does not exist, or whose retention has ended.
fn with_deliveries_hint(error: ApiError, scoped: &ScopedApi, id: &str) -> CliError {
    CliError::from(error).with_next_for("NOT_FOUND", || {
        format!("`countersign webhook deliveries{} {id}` shows the deliveries", scoped.option())
    })
}
