//! Requests of services and administrators for webhooks and their deliveries.

use super::{
    Api, Page, PageStart, Result,
    management::List,
    response::{id, line, optional_line},
};
use countersign_identity::{EventId, WebhookId};
use reqwest::Method;
use secrecy::SecretString;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

/// The webhooks that a request applies to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WebhookScope {
    /// The webhooks of a service, which receive its events.
    Service(String),
    /// The webhooks of the whole Countersign deployment, which receive the events of all services.
    Deployment,
}

/// Requests about webhooks.
#[derive(Debug, Clone)]
pub struct WebhookApi {
    /// The control plane.
    pub api: Api,
    /// The webhooks that the requests are about.
    pub scope: WebhookScope,
    /// An API key of scope `full`, or the token of the service's owner or an administrator.
    pub credential: SecretString,
}

/// A webhook: a URL to which events are delivered.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Webhook {
    /// The id of the webhook.
    #[serde(deserialize_with = "id::<_, WebhookId>")]
    pub webhook_id: String,
    /// The service whose events the webhook receives; `None` for the events of all services.
    pub service_id: Option<String>,
    /// The URL of the receiver.
    pub url: String,
    /// The event kinds that the webhook receives, or only `*` for all kinds.
    pub events: Vec<String>,
    /// The description of the webhook.
    pub description: Option<String>,
    /// The `managedBy` of the files that declare the webhook; `None` if no file with a `managedBy` declares it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub managed_by: Option<String>,
    /// The status: `active`, `paused` or `disabled`.
    pub status: String,
    /// Why the webhook is disabled: `gone` (the receiver returned 410) or `failing` (all deliveries failed for too long).
    pub disabled_reason: Option<String>,
    /// The time since which every delivery has failed.
    pub failing_since: Option<String>,
    /// The time until which requests are also signed with the previous secret.
    pub previous_secret_expires_at: Option<String>,
    /// When the webhook was created (RFC 3339).
    pub created_at: String,
    /// When the webhook was last changed (RFC 3339).
    pub updated_at: String,
}

/// A new webhook and its secret, which no later response contains.
#[derive(Debug, Deserialize)]
pub struct NewWebhook {
    /// The webhook.
    #[serde(flatten)]
    pub webhook: Webhook,
    /// The secret that signs the requests to the webhook.
    pub secret: SecretString,
}

/// A new secret of a webhook, which no later response contains.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NewSecret {
    /// The new secret.
    pub secret: SecretString,
    /// The time until which requests are also signed with the previous secret.
    #[serde(deserialize_with = "line")]
    pub previous_secret_expires_at: String,
}

/// The properties of a new webhook, where `None` means the default; or a change of a webhook, where `None` changes nothing.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WebhookChange {
    /// The URL of the receiver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The event kinds that the webhook receives, or only `*` for all kinds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events: Option<Vec<String>>,
    /// The description of the webhook.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The `managedBy` of the files that declare the webhook.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub managed_by: Option<String>,
    /// The new status: `active` or `paused`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<&'static str>,
}

/// The delivery of an event to a webhook.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WebhookDelivery {
    /// The id of the event, which is also the header `webhook-id` of the request.
    #[serde(deserialize_with = "id::<_, EventId>")]
    pub event_id: String,
    /// The event kind.
    pub event: String,
    /// When the event occurred.
    pub occurred_at: String,
    /// The status: `pending`, `delivered` or `dead` (given up after failed attempts).
    pub status: String,
    /// The number of attempts.
    pub attempts: u64,
    /// When the next attempt is due.
    pub next_attempt_at: Option<String>,
    /// When the last attempt was made.
    pub last_attempt_at: Option<String>,
    /// The HTTP status of the last response.
    pub response_status: Option<u16>,
    /// The beginning of the body of the last response.
    pub response_body: Option<String>,
    /// Why the last attempt failed.
    #[serde(default, deserialize_with = "optional_line")]
    pub failure: Option<String>,
    /// The body of the request, which only [`WebhookApi::read_delivery`] returns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TestEvent {
    #[serde(deserialize_with = "id::<_, EventId>")]
    event_id: String,
}

#[derive(Deserialize)]
struct ReplayResult {
    replayed: u64,
}

impl WebhookApi {
    async fn call<T: DeserializeOwned>(&self, method: Method, path: &[&str], body: Option<&Value>) -> Result<T> {
        self.api.call(method, &self.path(path), Some(&self.credential), body).await
    }

    fn path<'a>(&'a self, rest: &[&'a str]) -> Vec<&'a str> {
        match &self.scope {
            WebhookScope::Service(service) => [&["services", service, "webhooks"], rest].concat(),
            WebhookScope::Deployment => [&["webhooks"], rest].concat(),
        }
    }

    /// Creates a webhook.
    pub async fn create(&self, webhook: &WebhookChange) -> Result<NewWebhook> {
        self.call(Method::POST, &[], Some(&json!(webhook))).await
    }

    /// Lists all webhooks of the scope. The list has no pages, because the number of webhooks is limited.
    pub async fn list(&self) -> Result<Vec<Webhook>> {
        self.call(Method::GET, &[], None).await.map(|List { data }| data)
    }

    /// Reads a webhook.
    pub async fn read(&self, webhook: &str) -> Result<Webhook> {
        self.call(Method::GET, &[webhook], None).await
    }

    /// Changes a webhook.
    pub async fn change(&self, webhook: &str, change: &WebhookChange) -> Result<Webhook> {
        self.call(Method::PATCH, &[webhook], Some(&json!(change))).await
    }

    /// Deletes a webhook and its pending deliveries.
    pub async fn delete(&self, webhook: &str) -> Result<()> {
        self.call::<Value>(Method::DELETE, &[webhook], None).await.map(drop)
    }

    /// Creates a new secret of a webhook. Until the previous secret expires, requests are signed with the previous and
    /// the new secret.
    pub async fn rotate_secret(&self, webhook: &str) -> Result<NewSecret> {
        self.call(Method::POST, &[webhook, "rotate-secret"], None).await
    }

    /// Sends an event of kind `webhook.test` to the webhook. Returns the id of the event.
    pub async fn test(&self, webhook: &str) -> Result<String> {
        let path = [webhook, "test"];
        self.call(Method::POST, &path, None).await.map(|TestEvent { event_id }| event_id)
    }

    /// Lists at most `limit` deliveries of a webhook, newest first.
    pub async fn list_deliveries(
        &self,
        webhook: &str,
        status: Option<&str>,
        limit: usize,
        start: &PageStart,
    ) -> Result<Page<WebhookDelivery>> {
        let path = self.path(&[webhook, "deliveries"]);
        self.api.page(&self.credential, &path, start, limit, &[("status", status)]).await
    }

    /// Reads a delivery, including the body of its request.
    pub async fn read_delivery(&self, webhook: &str, event: &str) -> Result<WebhookDelivery> {
        self.call(Method::GET, &[webhook, "deliveries", event], None).await
    }

    /// Schedules another delivery of an event. Returns the number of scheduled deliveries.
    pub async fn replay_delivery(&self, webhook: &str, event: &str) -> Result<u64> {
        let path = [webhook, "deliveries", event, "replay"];
        self.call(Method::POST, &path, None).await.map(|ReplayResult { replayed }| replayed)
    }

    /// Schedules another delivery of every event since a time (RFC 3339). If `status` is `delivered` or `dead`,
    /// includes only deliveries with that status. Returns the number of scheduled deliveries.
    pub async fn replay_since(&self, webhook: &str, since: &str, status: Option<&str>) -> Result<u64> {
        let mut body = json!({ "since": since });
        if let Some(status) = status {
            body["status"] = json!(status);
        }
        let path = [webhook, "replay"];
        self.call(Method::POST, &path, Some(&body)).await.map(|ReplayResult { replayed }| replayed)
    }
}
