//! Webhook targets and their deliveries.

mod deliveries;
mod targets;

pub use deliveries::{ReplaySelection, list_deliveries, read_delivery, replay_deliveries, send_test_event};
pub use targets::{
    NewWebhook, WebhookChange, change_webhook, create_webhook, delete_webhook, list_webhooks, read_webhook,
    rotate_webhook_secret,
};
