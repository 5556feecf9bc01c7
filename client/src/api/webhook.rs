//! Webhooks and their deliveries: the requests of services and administrators.

use super::{Api, ApiError, Page};
use reqwest::Method;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Which webhooks a request is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WebhookScope {
    /// The webhooks of a service, which receive its events.
    Service(String),
    /// The webhooks of the deployment, which receive the events of all services.
    Deployment,
}

/// A URL that events are delivered to.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Webhook {
    /// The id of the webhook.
    pub webhook_id: String,
    /// The service whose events it receives; `None` for all services.
    pub service_id: Option<String>,
    /// The URL of the receiver.
    pub url: String,
    /// The event kinds that it receives, or `*` alone.
    pub events: Vec<String>,
    /// The description.
    pub description: Option<String>,
    /// `active`, `paused` or `disabled`.
    pub status: String,
    /// Why it is disabled: `gone` or `failing`.
    pub disabled_reason: Option<String>,
    /// Since when every delivery fails.
    pub failing_since: Option<String>,
    /// Until when requests are signed with the previous secret too.
    pub previous_secret_expires_at: Option<String>,
    /// When it was created.
    pub created_at: String,
    /// When it was last changed.
    pub updated_at: String,
}

/// A new webhook. This is the only response that contains its secret.
#[derive(Debug, Deserialize)]
pub struct NewWebhook {
    /// The webhook.
    #[serde(flatten)]
    pub webhook: Webhook,
    /// The secret that signs its requests.
    pub secret: SecretString,
}

/// A new secret of a webhook. This is the only response that contains it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NewSecret {
    /// The new secret.
    pub secret: SecretString,
    /// Until when requests are signed with the previous secret too.
    pub previous_secret_expires_at: String,
}

/// The fields of a webhook to set. `None` leaves a field unchanged.
#[derive(Debug, Default)]
pub struct WebhookChange {
    /// The URL of the receiver.
    pub url: Option<String>,
    /// The event kinds that it receives, or `*` alone.
    pub events: Option<Vec<String>>,
    /// The description.
    pub description: Option<String>,
    /// `active` or `paused`.
    pub status: Option<&'static str>,
}

/// The delivery of an event to a webhook.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WebhookDelivery {
    /// The id of the event, which the receiver gets as `webhook-id`.
    pub event_id: String,
    /// The event kind.
    pub event: String,
    /// When the event occurred.
    pub occurred_at: String,
    /// `pending`, `delivered` or `dead`.
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
    pub failure: Option<String>,
    /// The body of the request; only in the response for a single delivery.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Value>,
}

#[derive(Deserialize)]
struct WebhookList {
    data: Vec<Webhook>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TestEvent {
    event_id: String,
}

#[derive(Deserialize)]
struct ReplayResult {
    replayed: u64,
}

impl WebhookScope {
    fn path<'a>(&'a self, rest: &[&'a str]) -> Vec<&'a str> {
        match self {
            Self::Service(service) => [&["services", service, "webhooks"], rest].concat(),
            Self::Deployment => [&["webhooks"], rest].concat(),
        }
    }
}

impl WebhookChange {
    fn body(&self) -> Value {
        let Self { url, events, description, status } = self;
        let fields = [
            ("url", url.as_ref().map(|url| json!(url))),
            ("events", events.as_ref().map(|events| json!(events))),
            ("description", description.as_ref().map(|description| json!(description))),
            ("status", status.map(|status| json!(status))),
        ];
        let set = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        Value::Object(set.collect::<Map<_, _>>())
    }
}

impl Api {
    /// Creates a webhook. `manager` is an API key of scope `full`, the token of the owner, or that of an administrator.
    pub async fn create_webhook(
        &self,
        manager: &SecretString,
        scope: &WebhookScope,
        webhook: &WebhookChange,
    ) -> Result<NewWebhook, ApiError> {
        self.call(Method::POST, &scope.path(&[]), Some(manager), Some(&webhook.body())).await
    }

    /// All webhooks of the scope; their number is limited, so there are no pages.
    pub async fn list_webhooks(&self, manager: &SecretString, scope: &WebhookScope) -> Result<Vec<Webhook>, ApiError> {
        self.call(Method::GET, &scope.path(&[]), Some(manager), None).await.map(|WebhookList { data }| data)
    }

    /// One webhook.
    pub async fn read_webhook(
        &self,
        manager: &SecretString,
        scope: &WebhookScope,
        webhook: &str,
    ) -> Result<Webhook, ApiError> {
        self.call(Method::GET, &scope.path(&[webhook]), Some(manager), None).await
    }

    /// Changes a webhook.
    pub async fn change_webhook(
        &self,
        manager: &SecretString,
        scope: &WebhookScope,
        webhook: &str,
        change: &WebhookChange,
    ) -> Result<Webhook, ApiError> {
        self.call(Method::PATCH, &scope.path(&[webhook]), Some(manager), Some(&change.body())).await
    }

    /// Deletes a webhook and its pending deliveries.
    pub async fn delete_webhook(
        &self,
        manager: &SecretString,
        scope: &WebhookScope,
        webhook: &str,
    ) -> Result<(), ApiError> {
        self.call::<Value>(Method::DELETE, &scope.path(&[webhook]), Some(manager), None).await.map(drop)
    }

    /// Creates a new secret. Requests are signed with both secrets until the previous one expires.
    pub async fn rotate_webhook_secret(
        &self,
        manager: &SecretString,
        scope: &WebhookScope,
        webhook: &str,
    ) -> Result<NewSecret, ApiError> {
        self.call(Method::POST, &scope.path(&[webhook, "rotate-secret"]), Some(manager), None).await
    }

    /// Sends an event of kind `webhook.test`. Returns its id.
    pub async fn test_webhook(
        &self,
        manager: &SecretString,
        scope: &WebhookScope,
        webhook: &str,
    ) -> Result<String, ApiError> {
        let path = scope.path(&[webhook, "test"]);
        self.call(Method::POST, &path, Some(manager), None).await.map(|TestEvent { event_id }| event_id)
    }

    /// Deliveries of a webhook, newest first: at most `limit`, after the first `offset`.
    pub async fn list_deliveries(
        &self,
        manager: &SecretString,
        scope: &WebhookScope,
        webhook: &str,
        status: Option<&str>,
        (limit, offset): (usize, usize),
    ) -> Result<Page<WebhookDelivery>, ApiError> {
        let mut url = self.endpoint(&scope.path(&[webhook, "deliveries"]))?;
        url.query_pairs_mut().append_pair("limit", &limit.to_string()).append_pair("offset", &offset.to_string());
        if let Some(status) = status {
            url.query_pairs_mut().append_pair("status", status);
        }
        self.send(self.http.get(url).bearer_auth(manager.expose_secret())).await
    }

    /// One delivery, with the body of its request.
    pub async fn read_delivery(
        &self,
        manager: &SecretString,
        scope: &WebhookScope,
        webhook: &str,
        event: &str,
    ) -> Result<WebhookDelivery, ApiError> {
        self.call(Method::GET, &scope.path(&[webhook, "deliveries", event]), Some(manager), None).await
    }

    /// Delivers an event again. Returns the number of deliveries.
    pub async fn replay_delivery(
        &self,
        manager: &SecretString,
        scope: &WebhookScope,
        webhook: &str,
        event: &str,
    ) -> Result<u64, ApiError> {
        let path = scope.path(&[webhook, "deliveries", event, "replay"]);
        self.call(Method::POST, &path, Some(manager), None).await.map(|ReplayResult { replayed }| replayed)
    }

    /// Delivers the events since a time (RFC 3339) again, or only those whose delivery is `delivered` or `dead`.
    /// Returns the number of deliveries.
    pub async fn replay_since(
        &self,
        manager: &SecretString,
        scope: &WebhookScope,
        webhook: &str,
        since: &str,
        status: Option<&str>,
    ) -> Result<u64, ApiError> {
        let mut body = json!({ "since": since });
        if let Some(status) = status {
            body["status"] = json!(status);
        }
        let path = scope.path(&[webhook, "replay"]);
        self.call(Method::POST, &path, Some(manager), Some(&body)).await.map(|ReplayResult { replayed }| replayed)
    }
}
