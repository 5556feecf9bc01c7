//! The next step after an error.
//!
//! Invariant: no hint of this module names a command that cannot be undone.

mod issuer;
mod tls;

pub use tls::{hint_for_tls_error, is_unknown_authority};

use super::error::{Cause, CliError};
use countersign_client::{ApiError, KeyError, ProfileError, api::innermost};
use countersign_identity::ServiceId;
use serde_json::{Map, Value};
use std::borrow::Cow;

const RETRY: &str = "try again";
const LOGIN: &str = "countersign agent login";

/// The next step after this error, if there is a known one.
pub fn next_step(error: &CliError) -> Option<Cow<'_, str>> {
    if let Some(next) = &error.next {
        return Some(Cow::Borrowed(next));
    }
    let Cause::Api(ApiError::Refused { status, code, reason, retry_after, details, .. }) = &error.cause else {
        return hint_for_cause(&error.cause).map(Cow::Borrowed);
    };
    if *status == 429
        && let Some(wait) = retry_after
    {
        let seconds = wait.as_secs();
        let plural = if wait.as_secs() == 1 { "" } else { "s" };
        return Some(format!("wait {seconds} second{plural}, then try again; the operator sets the limits").into());
    }
    let setting = details.fields.get("setting").and_then(Value::as_str);
    let of_other_service =
        || hint_for_other_service(&details.fields).filter(|_| reason.as_deref() == Some("not_yours"));
    if let Some(hint) = setting.and_then(hint_for_setting).or_else(of_other_service) {
        return Some(hint.into());
    }
    let server_error = (*status >= 500).then_some(RETRY);
    let hint = reason.as_deref().and_then(hint_for_reason).or_else(|| hint_for_code(code)).or(server_error);
    hint.map(Cow::Borrowed)
}

/// The hint for a request that a setting of the control plane does not allow.
fn hint_for_setting(setting: &str) -> Option<String> {
    let next = match setting {
        "quotas.services_per_person" => {
            "`countersign service list` shows your services: transfer one to another user, because a deleted service counts \
             for 30 more days"
        }
        "quotas.agents_per_person" => {
            "`countersign agent list` shows your agents: use one of them, because a deleted agent counts for 30 more days"
        }
        "registration.public_agents" => "countersign login, then register the agent as yours",
        "quotas.keys_per_service" => {
            "`countersign key list --service SERVICE` shows the keys: revoke one that is not used"
        }
        "services.created_by" => {
            return Some("ask an administrator to create the service and to transfer it to you".to_owned());
        }
        _ => return None,
    };
    Some(format!("{next}; or ask the operator to raise {setting}"))
}

/// The hint for an API key that belongs to another service than the requested one. `None` if the credential is no API key.
fn hint_for_other_service(details: &Map<String, Value>) -> Option<String> {
    let service = |name| details.get(name)?.get("serviceId")?.as_str()?.parse::<ServiceId>().ok();
    let required = service("required")?;
    let actual = service("actual")?;
    (required != actual).then(|| {
        format!("the API key belongs to {actual}: unset COUNTERSIGN_SERVICE_KEY, or set it to an API key of {required}")
    })
}

fn hint_for_cause(cause: &Cause) -> Option<&'static str> {
    match cause {
        Cause::Denied { reason, .. } => hint_for_reason(reason),
        Cause::Api(ApiError::Unreachable { url, error }) => {
            let trust = "pass the authority that signed its certificate, with --ca FILE or COUNTERSIGN_CA";
            hint_for_tls_error(&innermost(error), trust).or(Some(hint_for_unreachable(url, error.is_timeout())))
        }
        Cause::Api(ApiError::Url(_)) => Some("set --server https://HOST:PORT or COUNTERSIGN_URL"),
        Cause::Api(ApiError::Unreadable(_)) => Some(
            "is --server (COUNTERSIGN_URL) the URL of a control plane? Use the port of the API (8443 by default), not the sync \
             port (8444)",
        ),
        Cause::Api(ApiError::WiderScope(_)) => Some("the tokens were discarded; ask the operator of the control plane"),
        Cause::Api(ApiError::Key(error)) | Cause::Key(error) => hint_for_key_error(error),
        Cause::Issuer(error) => issuer::hint_for_issuer_error(error),
        Cause::NotStarted { .. } => Some("countersign agent exec -- CMD runs a program from PATH"),
        Cause::File { .. } => Some("is the path right?"),
        Cause::Profile(ProfileError::Malformed { .. }) => Some("correct the file or delete it"),
        Cause::Profile(ProfileError::File { .. }) | Cause::NotSaved(_) => {
            Some("set XDG_CONFIG_HOME to a folder that you can write")
        }
        Cause::Api(ApiError::CaCertificates(_) | ApiError::Refused { .. })
        | Cause::Profile(_)
        | Cause::Usage(_)
        | Cause::Failed(_)
        | Cause::NotFound { .. }
        | Cause::NotEnforced { .. }
        | Cause::WouldChange { .. }
        | Cause::Unreachable(_) => None,
    }
}

/// The hint for a control plane that does not answer. A URL without a port is a common mistake, because the client then
/// connects to port 443.
fn hint_for_unreachable(url: &str, timeout: bool) -> &'static str {
    if url.contains(":443/") {
        "is it running? Port 443 was tried; a control plane listens on 8443 by default: set the port in --server \
         (COUNTERSIGN_URL)"
    } else if timeout {
        "is it running, and is --server (COUNTERSIGN_URL) right? --timeout allows more time"
    } else {
        "is it running, and is --server (COUNTERSIGN_URL) right?"
    }
}

fn hint_for_key_error(error: &KeyError) -> Option<&'static str> {
    match error {
        KeyError::File { error, .. } if error.kind() == std::io::ErrorKind::NotFound => {
            Some("`countersign agent keygen` creates a key; is the path right?")
        }
        KeyError::File { error, .. } if error.kind() == std::io::ErrorKind::AlreadyExists => {
            Some("no key is overwritten: for another agent, use another --profile or --key")
        }
        KeyError::Malformed(_) => Some("`countersign agent keygen` creates a key of the right kind"),
        KeyError::Signer { .. } | KeyError::Signature => Some(
            "the signer reads the text to sign from standard input and must print the signature (ECDSA P-256, SHA-256), as hex or bytes",
        ),
        KeyError::File { .. } | KeyError::Encoding => None,
    }
}

/// The hint for a reason of `countersign_identity::Reason`, by its name.
fn hint_for_reason(reason: &str) -> Option<&'static str> {
    Some(match reason {
        "service_key_missing" => "set COUNTERSIGN_SERVICE_KEY; `countersign key create` creates a key",
        "service_key_invalid" => {
            "check COUNTERSIGN_SERVICE_KEY; `countersign key create` creates a new key, unless the service is deleted"
        }
        "scope_insufficient" => "use a key that `countersign key create --scope full` created",
        "human_token_missing" | "human_token_invalid" | "human_token_expired" => {
            "countersign login, or set COUNTERSIGN_HUMAN_TOKEN to a token of your identity provider; if there is none, the \
             operator mints a token: countersign-control-plane human-token mint --subject NAME"
        }
        "human_issuer_unavailable" => "try again; is the identity provider of the control plane available?",
        "not_yours" => {
            "a human user's token is valid for the user's own agents and services, an API key for its own service"
        }
        "admin_required" => "ask an administrator",
        "token_audience_mismatch" | "token_unbound" => "countersign agent login --service SERVICE",
        "token_expired" | "token_superseded" | "token_revoked" | "token_key_unknown" => LOGIN,
        "no_role" => {
            "ask the service for a role: countersign role assign ROLE AGENT. If the agent has one, name the service at the login"
        }
        "role_missing" | "permission_missing" => "ask the service for a role: countersign role assign ROLE AGENT",
        "token_scope_insufficient" => "log in with a wider scope, or without one: countersign agent login --oauth",
        "agent_suspended" => "its owner can run: countersign agent reactivate AGENT",
        "agent_revoked" => "revocation is final; create a new agent: countersign agent keygen --profile NAME",
        "agent_left" => "the owner of the agent can run: countersign agent readmit AGENT SERVICE",
        "challenge_expired" | "challenge_used" | "assertion_used" => RETRY,
        "assertion_invalid" | "assertion_expired" => {
            "does the agent exist, and is the clock of this machine right? countersign doctor"
        }
        "token_malformed" | "token_signature_invalid" | "token_claims_invalid" => {
            "is it a token of this control plane? `countersign agent login` gets one"
        }
        _ => return None,
    })
}

fn hint_for_code(code: &str) -> Option<&'static str> {
    Some(match code {
        "AGENT_NOT_FOUND" => "`countersign agent show` shows the agent of the profile",
        "SERVICE_NOT_FOUND" => {
            "check the id of the service (--service, COUNTERSIGN_SERVICE_ID); `countersign service list` shows your services"
        }
        "ROLE_NOT_FOUND" => "`countersign role list` shows the roles",
        "CONFLICT" => "`countersign role list` and `countersign service list` show what exists",
        "WEBHOOK_NOT_FOUND" => {
            "`countersign webhook list` shows the webhooks; with --deployment, those for all services"
        }
        "NOT_FOUND" => {
            "`countersign key list` and `countersign signing-key list` show the keys; is there a wrong path in --server \
             (COUNTERSIGN_URL)?"
        }
        "INVALID_SIGNATURE" | "invalid_client" => {
            "does this key belong to this agent? `countersign agent show` shows both"
        }
        "invalid_scope" => "`countersign token inspect` shows the permissions of the agent: name only these in --scope",
        "invalid_target" => "check the service or the resource: --service, --resource",
        _ => return None,
    })
}
