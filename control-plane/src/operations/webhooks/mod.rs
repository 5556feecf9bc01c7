//! Webhook targets and their deliveries.

mod change;
mod create;
mod deliveries;
mod read;

pub use change::{WebhookChange, change_webhook, delete_webhook, rotate_webhook_secret};
pub use create::{NewWebhook, create_webhook};
pub use deliveries::{ReplaySelection, replay_deliveries, send_test_event};
pub use read::{list_deliveries, list_webhooks, read_delivery, read_webhook};
