//! Sends test events, lists deliveries and replays them.

use super::{
    display,
    scope::{SelectedWebhook, WebhookArgs, scope_option},
};
use crate::cli::{
    ids::event_id,
    prelude::{CliError, CommandOutput, Context, details, value_name},
    time::parse_past_time,
};
use clap::{Args, ValueEnum};
use countersign_client::{
    ApiError,
    api::{Listing, PageStart, WebhookApi, WebhookDelivery, items_up_to},
};
use jiff::Timestamp;
use serde_json::json;
use std::time::Duration;

/// How long `countersign webhook test` waits for the delivery. An attempt of the control plane times out earlier.
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// The first pause between polls of `countersign webhook test`. The pauses grow, because polls count against the rate limit.
const FIRST_POLL_PAUSE: Duration = Duration::from_millis(50);

/// The longest pause between polls.
const LONGEST_POLL_PAUSE: Duration = Duration::from_secs(2);

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

pub async fn test(context: &Context, args: WebhookArgs) -> Result<CommandOutput, CliError> {
    let SelectedWebhook { webhooks, id } = args.api(context).await?;
    let event = webhooks.test(&id).await?;
    let finished = tokio::time::timeout(TEST_TIMEOUT, wait_for_final_status(&webhooks, &id, &event)).await;
    let delivery = match finished {
        Ok(result) => result?,
        Err(_) => webhooks.read_delivery(&id, &event).await?,
    };
    let option = scope_option(&webhooks.scope);
    let error = match delivery.status.as_str() {
        "delivered" => None,
        "pending" => {
            let text = format!("the event was not delivered within {} s", TEST_TIMEOUT.as_secs());
            let next = format!("countersign webhook deliveries{option} {id} --event {event}");
            Some(CliError::failed(text).with_next(next))
        }
        _ => Some(display::failure(&delivery)),
    };
    let next = format!("Next: countersign webhook deliveries{option} {id}");
    let note = if error.is_none() { next } else { String::new() };
    Ok(display::delivery(&delivery).with_note(note).with_error(error))
}

async fn wait_for_final_status(webhooks: &WebhookApi, id: &str, event: &str) -> Result<WebhookDelivery, ApiError> {
    let mut pause = FIRST_POLL_PAUSE;
    loop {
        let delivery = webhooks.read_delivery(id, event).await?;
        if delivery.status != "pending" {
            return Ok(delivery);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_POLL_PAUSE);
    }
}

pub async fn deliveries(context: &Context, args: DeliveriesArgs) -> Result<CommandOutput, CliError> {
    let DeliveriesArgs { webhook, event, status, limit, offset, all } = args;
    let SelectedWebhook { webhooks, id } = webhook.api(context).await?;
    if let Some(event) = event {
        let result = webhooks.read_delivery(&id, &event_id(event)?).await;
        return result
            .map(|delivery| display::delivery(&delivery))
            .map_err(|error| with_deliveries_hint(error, &webhooks, &id));
    }
    let status = status.map(value_name);
    let limit = if all { usize::MAX } else { limit };
    let fetch = async |limit, start| webhooks.list_deliveries(&id, status.as_deref(), limit, &start).await;
    let Listing { items, has_more } = items_up_to(limit, PageStart::Offset(offset), fetch).await?;
    let note = if has_more { "Next: --all or --limit shows more" } else { "" };
    Ok(display::deliveries(&items).with_note(note))
}

pub async fn replay(context: &Context, args: ReplayArgs) -> Result<CommandOutput, CliError> {
    let ReplayArgs { webhook, event, since, status } = args;
    let SelectedWebhook { webhooks, id } = webhook.api(context).await?;
    let replayed = match (event, since) {
        (Some(event), _) => webhooks
            .replay_delivery(&id, &event_id(event)?)
            .await
            .map_err(|error| with_deliveries_hint(error, &webhooks, &id))?,
        (None, Some(since)) => {
            let status = status.map(value_name);
            webhooks.replay_since(&id, &since.to_string(), status.as_deref()).await?
        }
        (None, None) => return Err(CliError::missing("what to deliver again", "pass --event EVENT or --since TIME")),
    };
    let text = details([("webhook", id.clone()), ("replayed", replayed.to_string())]);
    let json = json!({ "replayed": replayed, "webhookId": id });
    let note = format!("Next: countersign webhook deliveries{} {id}", scope_option(&webhooks.scope));
    Ok(CommandOutput::new(text, json).with_note(note))
}

/// Adds a hint to the error for a delivery that does not exist or is no longer kept.
fn with_deliveries_hint(error: ApiError, webhooks: &WebhookApi, id: &str) -> CliError {
    CliError::from(error).with_next_for("NOT_FOUND", || {
        format!("`countersign webhook deliveries{} {id}` shows the deliveries", scope_option(&webhooks.scope))
    })
}
