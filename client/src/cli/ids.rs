//! Ids on the command line, checked before they are sent.

use super::CliError;
use countersign_identity::{AgentId, ApiKeyId, EventId, Kid, ServiceId, WebhookId};

/// No id but a `kid` is longer.
const LONGEST_ID: usize = 32;

/// The length of a `kid`.
const KID_LENGTH: usize = 43;

/// The id of an agent.
pub fn agent_id(text: String) -> Result<String, CliError> {
    let valid = text.parse::<AgentId>().is_ok();
    checked(
        text,
        valid,
        "an agent: agent_ and 26 characters",
        "`countersign agent show` shows the agent of the profile",
    )
}

/// The id of a service.
pub fn service_id(text: String) -> Result<String, CliError> {
    let valid = text.parse::<ServiceId>().is_ok();
    checked(
        text,
        valid,
        "a service: svc_ and 26 characters",
        "`countersign service list` shows the ids of your services",
    )
}

/// The id of a webhook.
pub fn webhook_id(text: String) -> Result<String, CliError> {
    let valid = text.parse::<WebhookId>().is_ok();
    checked(text, valid, "a webhook: wh_ and 26 characters", "`countersign webhook list` shows the ids")
}

/// The id of an event.
pub fn event_id(text: String) -> Result<String, CliError> {
    let valid = text.parse::<EventId>().is_ok();
    let next = "`countersign webhook deliveries WEBHOOK` shows the ids";
    checked(text, valid, "an event: evt_ and 26 characters", next)
}

/// The id of an API key.
pub fn api_key_id(text: String) -> Result<String, CliError> {
    let valid = text.parse::<ApiKeyId>().is_ok();
    checked(text, valid, "an API key: key_ and 26 characters", "`countersign key list` shows the ids")
}

/// The id of a signing key.
pub fn kid(text: String) -> Result<String, CliError> {
    let valid = text.parse::<Kid>().is_ok();
    checked(text, valid, "a signing key: 43 characters", "`countersign signing-key list` shows the ids")
}

fn checked(text: String, valid: bool, expected: &str, next: &str) -> Result<String, CliError> {
    if valid {
        return Ok(text);
    }
    // A mistyped id is repeated. Longer text may be a misplaced secret.
    let longest = if expected.starts_with("a signing key") { KID_LENGTH } else { LONGEST_ID };
    let shown = if text.len() <= longest { text.as_str() } else { "…" };
    Err(CliError::Usage(format!("`{shown}` is not the id of {expected}\nNext: {next}")))
}
