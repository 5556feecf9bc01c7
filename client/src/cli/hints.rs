//! The next step after an error.
//!
//! Invariant: no hint of this module names a command that cannot be undone.

use super::{
    CliError, human,
    usage::{argument_for_field, help_command},
};
use countersign_client::{ApiError, KeyError, ProfileError, api::innermost};
use countersign_identity::ServiceId;
use serde_json::{Map, Value};
use std::borrow::Cow;

/// The beginning of the message of an invalid certificate.
const CERTIFICATE_ERROR: &str = "invalid peer certificate: ";

const RETRY: &str = "try again";
const LOGIN: &str = "countersign agent login";

/// The next step after this error, if there is a known one.
pub fn for_error(error: &CliError) -> Option<Cow<'_, str>> {
    match error {
        CliError::Api(ApiError::Refused { status: 429, retry_after: Some(wait), .. }) => {
            let (seconds, plural) = (wait.as_secs(), if wait.as_secs() == 1 { "" } else { "s" });
            let text = format!("wait {seconds} second{plural}, then run the same again; the operator sets the limits");
            Some(text.into())
        }
        CliError::Api(ApiError::Refused { details, .. })
            if let Some(hint) = details.fields.get("setting").and_then(Value::as_str).and_then(hint_for_setting) =>
        {
            Some(hint.into())
        }
        CliError::Api(ApiError::Refused { code, details, .. }) if code == "VALIDATION_ERROR" => {
            Some(hint_for_validation_error(&details.fields).into())
        }
        CliError::Api(ApiError::Refused { reason: Some(reason), details, .. })
            if reason == "not_yours"
                && let Some(hint) = hint_for_other_service(&details.fields) =>
        {
            Some(hint.into())
        }
        CliError::ApiWithHint { hint, .. } => Some(Cow::Borrowed(hint)),
        _ => fixed_hint(error).map(Cow::Borrowed),
    }
}

/// The hint for values that the API refused: the arguments that set the fields in `error.details`.
fn hint_for_validation_error(details: &Map<String, Value>) -> String {
    let fields = details.get("fields").and_then(Value::as_object).into_iter().flatten();
    let arguments: Vec<_> = fields.filter_map(|(field, _)| argument_for_field(field)).collect();
    if arguments.is_empty() {
        return format!("`{}` shows the arguments", help_command());
    }
    format!("correct {}", arguments.join(" and "))
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

/// The hint for an API key of another service than the requested one. `None` if the credential is no API key.
fn hint_for_other_service(details: &Map<String, Value>) -> Option<String> {
    let service = |name| details.get(name)?.get("serviceId")?.as_str()?.parse::<ServiceId>().ok();
    let (required, actual) = (service("required")?, service("actual")?);
    (required != actual).then(|| {
        format!("the API key belongs to {actual}: unset COUNTERSIGN_SERVICE_KEY, or set it to an API key of {required}")
    })
}

fn fixed_hint(error: &CliError) -> Option<&'static str> {
    match error {
        CliError::Denied { reason, .. } => hint_for_reason(reason),
        CliError::Api(ApiError::Refused { status, code, reason, .. }) => {
            let server_error = (*status >= 500).then_some(RETRY);
            reason.as_deref().and_then(hint_for_reason).or_else(|| hint_for_code(code)).or(server_error)
        }
        CliError::Api(ApiError::Unreachable { url, error }) => {
            let trust = "pass the authority that signed its certificate, with --ca FILE or COUNTERSIGN_CA";
            hint_for_tls_error(&innermost(error), trust).or(Some(hint_for_unreachable(url, error.is_timeout())))
        }
        CliError::Api(ApiError::Url(_)) => Some("set --server https://HOST:PORT or COUNTERSIGN_URL"),
        CliError::Api(ApiError::Unreadable(_)) => Some(
            "is --server (COUNTERSIGN_URL) that of a control plane? Use the port of the API (8443 by default), not the sync \
             port (8444)",
        ),
        CliError::Api(ApiError::WiderScope(_)) => {
            Some("the tokens were discarded; ask the operator of the control plane")
        }
        CliError::Api(ApiError::Key(error)) | CliError::Key(error) => hint_for_key_error(error),
        CliError::Issuer(error) => human::hint_for_issuer_error(error),
        CliError::NotStarted { .. } => Some("countersign agent exec -- CMD runs a program from PATH"),
        CliError::File { .. } => Some("is the path right?"),
        CliError::Profile(ProfileError::Malformed { .. }) => Some("correct the file or delete it"),
        CliError::Profile(ProfileError::File { .. }) | CliError::NotSaved(_) => {
            Some("set XDG_CONFIG_HOME to a folder that you can write")
        }
        CliError::Api(ApiError::Authority(_))
        | CliError::ApiWithHint { .. }
        | CliError::Profile(_)
        | CliError::Usage(_)
        | CliError::Failed(_)
        | CliError::NotFound { .. }
        | CliError::NotEnforced { .. }
        | CliError::WouldChange { .. }
        | CliError::Unreachable(_) => None,
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

/// Whether the certificate of the control plane is signed by an authority that is not trusted.
pub fn is_unknown_authority(error: &ApiError) -> bool {
    let ApiError::Unreachable { error, .. } = error else { return false };
    // `hint_for_tls_error` returns its argument `trust`, which is empty here, only for an unknown authority.
    innermost(error).strip_prefix(CERTIFICATE_ERROR).is_some_and(is_unknown_issuer)
}

/// The hint for an error of TLS. `trust` is the hint for an unknown authority.
pub fn hint_for_tls_error(cause: &str, trust: &'static str) -> Option<&'static str> {
    // The first bytes of the response are no TLS record, as if a server answers in plain HTTP.
    if cause.contains("InvalidContentType") {
        return Some("the server does not speak TLS on this port: is the port in the URL right?");
    }
    let problem = cause.strip_prefix(CERTIFICATE_ERROR)?;
    let contains_one_of = |words: &[&str]| words.iter().any(|word| problem.contains(word));
    Some(if is_unknown_issuer(problem) {
        trust
    } else if contains_one_of(&["not valid for name", "NotValidForName"]) {
        "use a name in the URL that the certificate is valid for"
    } else if contains_one_of(&["expired", "Expired", "not valid yet", "NotValidYet"]) {
        "ask its operator to renew the certificate; or is the clock of this machine wrong?"
    } else {
        "is this the right server? Its certificate is invalid"
    })
}

/// Whether no trusted authority signed the certificate.
fn is_unknown_issuer(problem: &str) -> bool {
    problem.contains("UnknownIssuer") || problem.contains("BadSignature")
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
            "countersign login, or set COUNTERSIGN_HUMAN_TOKEN to a token of your identity provider; without one, the \
             operator mints a token: countersign-control-plane human-token mint --subject NAME"
        }
        "human_issuer_unavailable" => "try again; is the identity provider of the control plane available?",
        "not_yours" => {
            "a human user's token is valid for the user's own agents and services, an API key for its own service"
        }
        "admin_required" => "ask an administrator",
        "token_audience_mismatch" | "token_unbound" => "countersign agent login --service SERVICE",
        "token_expired" | "token_superseded" | "token_revoked" | "token_key_unknown" => LOGIN,
        "no_role" | "role_missing" | "permission_missing" => {
            "ask the service for a role: countersign role assign ROLE AGENT"
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::{CertificateError, Error, pki_types::ServerName};

    #[test]
    fn tls_errors_have_a_hint_by_cause() {
        let expected = ServerName::try_from("host.example").unwrap();
        let name = CertificateError::NotValidForNameContext { expected, presented: vec!["other".into()] };
        for (error, expected) in [
            (CertificateError::UnknownIssuer, "--ca"),
            (CertificateError::BadSignature, "--ca"),
            (name, "a name"),
            (CertificateError::NotValidForName, "a name"),
            (CertificateError::Expired, "renew"),
            (CertificateError::NotValidYet, "clock"),
            (CertificateError::Revoked, "right server"),
        ] {
            let cause = Error::InvalidCertificate(error).to_string();
            let hint = hint_for_tls_error(&cause, "--ca").unwrap();
            assert!(hint.contains(expected), "{cause}: {hint}");
        }
        let plain = Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType).to_string();
        assert!(hint_for_tls_error(&plain, "--ca").unwrap().contains("does not speak TLS"), "{plain}");
        assert_eq!(hint_for_tls_error("Connection refused (os error 111)", "--ca"), None);
    }
}
