//! Ids on the command line, checked before they are sent.
//!
//! Invariant: an error never repeats text that may be a misplaced secret.

use super::error::CliError;
use countersign_client::api::begins_like_secret;
use countersign_identity::{AgentId, ApiKeyId, EventId, Kid, ServiceId, WebhookId};

/// The length of the longest ids, except the ids of signing keys.
pub const LONGEST_ID: usize = 32;

/// The length of the id of a signing key (`kid`).
const KID_LENGTH: usize = 43;

/// The text that an error shows for an argument: `…` if it is longer than `longest` or begins like a secret.
pub fn redacted_argument(argument: &str, longest: usize) -> &str {
    if begins_like_secret(argument) || argument.chars().count() > longest { "…" } else { argument }
}

/// Refuses text that begins like a secret, for values that are stored or become part of a URL.
pub fn no_secret(text: &str) -> Result<String, String> {
    if begins_like_secret(text) { Err("it begins like a secret".to_owned()) } else { Ok(text.to_owned()) }
}

/// Checks the id of an agent.
pub fn agent_id(text: String) -> Result<String, CliError> {
    let valid = text.parse::<AgentId>().is_ok();
    check_id(
        text,
        valid,
        "an agent: agent_ and 26 characters",
        "`countersign agent show` shows the agent of the profile",
    )
}

/// Checks the id of a service.
pub fn service_id(text: String) -> Result<String, CliError> {
    let valid = text.parse::<ServiceId>().is_ok();
    check_id(
        text,
        valid,
        "a service: svc_ and 26 characters",
        "`countersign service list` shows the ids of your services",
    )
}

/// Checks the id of a webhook.
pub fn webhook_id(text: String) -> Result<String, CliError> {
    let valid = text.parse::<WebhookId>().is_ok();
    check_id(text, valid, "a webhook: wh_ and 26 characters", "`countersign webhook list` shows the ids")
}

/// Checks the id of an event.
pub fn event_id(text: String) -> Result<String, CliError> {
    let valid = text.parse::<EventId>().is_ok();
    let next = "`countersign webhook deliveries WEBHOOK` shows the ids";
    check_id(text, valid, "an event: evt_ and 26 characters", next)
}

/// Checks the id of an API key.
pub fn api_key_id(text: String) -> Result<String, CliError> {
    let valid = text.parse::<ApiKeyId>().is_ok();
    check_id(text, valid, "an API key: key_ and 26 characters", "`countersign key list` shows the ids")
}

/// Checks the id of a signing key.
pub fn kid(text: String) -> Result<String, CliError> {
    let valid = text.parse::<Kid>().is_ok();
    check_id(text, valid, "a signing key: 43 characters", "`countersign signing-key list` shows the ids")
}

fn check_id(text: String, valid: bool, expected: &str, next: &str) -> Result<String, CliError> {
    if valid {
        return Ok(text);
    }
    let longest = if expected.starts_with("a signing key") { KID_LENGTH } else { LONGEST_ID };
    let shown = redacted_argument(&text, longest);
    Err(CliError::usage(format!("`{shown}` is not the id of {expected}")).with_next(next))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redacted_argument_hides_long_text_and_secrets() {
        assert_eq!(redacted_argument("reader", 32), "reader");
        assert_eq!(redacted_argument("svc_00000000000000000000000000", 32), "svc_00000000000000000000000000");
        for hidden in ["svc_sk_s", "whsec_s", "rf_s", "eyJhbGciOiJFUzI1NiJ9", &"a".repeat(33)] {
            assert_eq!(redacted_argument(hidden, 32), "…", "{hidden}");
        }
    }
}
