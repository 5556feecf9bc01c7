//! What services and administrators ask about webhooks.

use super::{Api, ApiError, Page};
use reqwest::Method;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Whose targets are meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Targets {
    /// Those of a service, which get its events.
    Service(String),
    /// Those of the deployment, which get all events.
    Deployment,
}

/// A place that events are delivered to.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Webhook {
    /// Its identifier.
    pub webhook_id: String,
    /// Whose events it gets; of all services, if none is named.
    pub service_id: Option<String>,
    /// Where it is.
    pub url: String,
    /// The kinds of event that it gets, or `*` alone.
    pub events: Vec<String>,
    /// What it is for.
    pub description: Option<String>,
    /// `active`, `paused` or `disabled`.
    pub status: String,
    /// Why it was disabled, if it was: `gone` or `failing`.
    pub disabled_reason: Option<String>,
    /// Since when everything fails there.
    pub failing_since: Option<String>,
    /// Until when the secret before this one signs too.
    pub previous_secret_expires_at: Option<String>,
    /// When it was made.
    pub created_at: String,
    /// When it was changed last.
    pub updated_at: String,
}

/// A target, just made: the secret is never told again.
#[derive(Debug, Deserialize)]
pub struct NewWebhook {
    /// What was made.
    #[serde(flatten)]
    pub webhook: Webhook,
    /// What signs.
    pub secret: SecretString,
}

/// Another secret of a target: it is never told again.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NewSecret {
    /// What signs from now on.
    pub secret: SecretString,
    /// Until when the one before signs too.
    pub previous_secret_expires_at: String,
}

/// What is to be changed of a target; what is absent stays.
#[derive(Debug, Default)]
pub struct WebhookChange {
    /// Where it is.
    pub url: Option<String>,
    /// The kinds of event that it gets, or `*` alone.
    pub events: Option<Vec<String>>,
    /// What it is for.
    pub description: Option<String>,
    /// `active` or `paused`.
    pub status: Option<&'static str>,
}

/// An event on its way to a target.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WebhookDelivery {
    /// The event's identifier, which the receiver sees as `webhook-id`.
    pub event_id: String,
    /// The event's kind.
    pub event: String,
    /// When it happened.
    pub occurred_at: String,
    /// `pending`, `delivered` or `dead`.
    pub status: String,
    /// How often it was tried.
    pub attempts: u64,
    /// When it is tried next, if it is.
    pub next_attempt_at: Option<String>,
    /// When it was tried last.
    pub last_attempt_at: Option<String>,
    /// The status that the receiver answered last.
    pub response_status: Option<u16>,
    /// The beginning of what it said.
    pub response_body: Option<String>,
    /// What went wrong last.
    pub failure: Option<String>,
    /// What is sent, if one delivery was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Value>,
}

#[derive(Deserialize)]
struct Listed {
    data: Vec<Webhook>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Begun {
    event_id: String,
}

#[derive(Deserialize)]
struct Replayed {
    replayed: u64,
}

impl Targets {
    fn path<'a>(&'a self, below: &[&'a str]) -> Vec<&'a str> {
        match self {
            Self::Service(service) => [&["services", service, "webhooks"], below].concat(),
            Self::Deployment => [&["webhooks"], below].concat(),
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
        let given = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        Value::Object(given.collect::<Map<_, _>>())
    }
}

impl Api {
    /// Makes a target. The manager is the service's key of full scope, its owner, or an administrator.
    pub async fn create_webhook(
        &self,
        manager: &SecretString,
        targets: &Targets,
        asked: &WebhookChange,
    ) -> Result<NewWebhook, ApiError> {
        self.call(Method::POST, &targets.path(&[]), Some(manager), Some(&asked.body())).await
    }

    /// The targets, of which there are few.
    pub async fn list_webhooks(&self, manager: &SecretString, targets: &Targets) -> Result<Vec<Webhook>, ApiError> {
        self.call(Method::GET, &targets.path(&[]), Some(manager), None).await.map(|Listed { data }| data)
    }

    /// A target.
    pub async fn read_webhook(
        &self,
        manager: &SecretString,
        targets: &Targets,
        webhook: &str,
    ) -> Result<Webhook, ApiError> {
        self.call(Method::GET, &targets.path(&[webhook]), Some(manager), None).await
    }

    /// Changes a target.
    pub async fn change_webhook(
        &self,
        manager: &SecretString,
        targets: &Targets,
        webhook: &str,
        change: &WebhookChange,
    ) -> Result<Webhook, ApiError> {
        self.call(Method::PATCH, &targets.path(&[webhook]), Some(manager), Some(&change.body())).await
    }

    /// Deletes a target, with whatever was on its way there.
    pub async fn delete_webhook(
        &self,
        manager: &SecretString,
        targets: &Targets,
        webhook: &str,
    ) -> Result<(), ApiError> {
        self.call::<Value>(Method::DELETE, &targets.path(&[webhook]), Some(manager), None).await.map(drop)
    }

    /// Gives a target another secret; both sign for a while.
    pub async fn rotate_webhook_secret(
        &self,
        manager: &SecretString,
        targets: &Targets,
        webhook: &str,
    ) -> Result<NewSecret, ApiError> {
        self.call(Method::POST, &targets.path(&[webhook, "rotate-secret"]), Some(manager), None).await
    }

    /// Sends an event to try a target out; gives its id.
    pub async fn test_webhook(
        &self,
        manager: &SecretString,
        targets: &Targets,
        webhook: &str,
    ) -> Result<String, ApiError> {
        let path = targets.path(&[webhook, "test"]);
        self.call(Method::POST, &path, Some(manager), None).await.map(|Begun { event_id }| event_id)
    }

    /// What was and is to be delivered to a target, newest first: `limit` at the most, from the `offset`th on.
    pub async fn list_deliveries(
        &self,
        manager: &SecretString,
        targets: &Targets,
        webhook: &str,
        status: Option<&str>,
        (limit, offset): (usize, usize),
    ) -> Result<Page<WebhookDelivery>, ApiError> {
        let mut url = self.at(&targets.path(&[webhook, "deliveries"]))?;
        url.query_pairs_mut().append_pair("limit", &limit.to_string()).append_pair("offset", &offset.to_string());
        if let Some(status) = status {
            url.query_pairs_mut().append_pair("status", status);
        }
        self.answer(self.http.get(url).bearer_auth(manager.expose_secret())).await
    }

    /// How it stands with one event for a target, and what is sent.
    pub async fn read_delivery(
        &self,
        manager: &SecretString,
        targets: &Targets,
        webhook: &str,
        event: &str,
    ) -> Result<WebhookDelivery, ApiError> {
        self.call(Method::GET, &targets.path(&[webhook, "deliveries", event]), Some(manager), None).await
    }

    /// Delivers an event once more.
    pub async fn replay_delivery(
        &self,
        manager: &SecretString,
        targets: &Targets,
        webhook: &str,
        event: &str,
    ) -> Result<u64, ApiError> {
        let path = targets.path(&[webhook, "deliveries", event, "replay"]);
        self.call(Method::POST, &path, Some(manager), None).await.map(|Replayed { replayed }| replayed)
    }

    /// Delivers once more what happened since an instant (RFC 3339), or of that what is `delivered` or `dead`; says
    /// how much.
    pub async fn replay_since(
        &self,
        manager: &SecretString,
        targets: &Targets,
        webhook: &str,
        since: &str,
        status: Option<&str>,
    ) -> Result<u64, ApiError> {
        let mut body = json!({ "since": since });
        if let Some(status) = status {
            body["status"] = json!(status);
        }
        let path = targets.path(&[webhook, "replay"]);
        self.call(Method::POST, &path, Some(manager), Some(&body)).await.map(|Replayed { replayed }| replayed)
    }
}
