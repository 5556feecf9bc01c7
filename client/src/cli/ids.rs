//! Ids on the command line, checked before they are sent.
//!
//! Invariant: an error never repeats text that may be a misplaced secret.

use super::error::CliError;
use countersign_client::api::begins_like_secret;
use countersign_identity::{AgentId, ApiKeyId, EventId, Kid, ServiceId, WebhookId};
use std::str::FromStr;

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

pub fn agent_id(text: String) -> Result<String, CliError> {
    let next = "`countersign agent show` shows the agent of the profile";
    check::<AgentId>(text, "an agent: agent_ and 26 characters", LONGEST_ID, next)
}

pub fn service_id(text: String) -> Result<String, CliError> {
    let next = "`countersign service list` shows the ids of your services";
    check::<ServiceId>(text, "a service: svc_ and 26 characters", LONGEST_ID, next)
}

pub fn webhook_id(text: String) -> Result<String, CliError> {
    let next = "`countersign webhook list` shows the ids";
    check::<WebhookId>(text, "a webhook: wh_ and 26 characters", LONGEST_ID, next)
}

pub fn event_id(text: String) -> Result<String, CliError> {
    let next = "`countersign webhook deliveries WEBHOOK` shows the ids";
    check::<EventId>(text, "an event: evt_ and 26 characters", LONGEST_ID, next)
}

pub fn api_key_id(text: String) -> Result<String, CliError> {
    let next = "`countersign key list` shows the ids";
    check::<ApiKeyId>(text, "an API key: key_ and 26 characters", LONGEST_ID, next)
}

pub fn kid(text: String) -> Result<String, CliError> {
    check::<Kid>(text, "a signing key: 43 characters", KID_LENGTH, "`countersign signing-key list` shows the ids")
}

fn check<Id: FromStr>(text: String, expected: &str, longest: usize, next: &str) -> Result<String, CliError> {
    if text.parse::<Id>().is_ok() {
        return Ok(text);
    }
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
