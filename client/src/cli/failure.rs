//! Every way for a command to end badly: its text, its exit code, and what to do next.

use countersign_client::{ApiError, KeyError, ProfileError, api::innermost};
use serde_json::{Value, json};
use std::{
    borrow::Cow,
    path::{Path, PathBuf},
};

const FAILED: u8 = 1;
const USAGE: u8 = 2;
const DENIED: u8 = 3;
const UNREACHABLE: u8 = 4;

// As shells have it.
const NOT_EXECUTABLE: u8 = 126;
const NO_SUCH_COMMAND: u8 = 127;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Something is missing that flags, environment or profile should have said.
    #[error("{0}")]
    Usage(String),
    /// It did not work.
    #[error("{0}")]
    Failed(String),
    /// A token or a request is refused.
    #[error("{message}")]
    Denied {
        /// One sentence.
        message: String,
        /// The reason, if there is one.
        reason: String,
    },
    /// A service does not answer.
    #[error("{0}")]
    Unreachable(String),
    /// A call to the control plane did not succeed.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The same, where it is known better than by its code what to do.
    #[error("{error}")]
    Advised {
        /// What was answered.
        error: ApiError,
        /// What to do about it.
        next: String,
    },
    /// A file that is named cannot be used.
    #[error("{named} {}: {problem}", path.display())]
    File {
        /// What names it: an option, or the profile.
        named: String,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A command of the user's cannot be run.
    #[error("{program}: {error}")]
    NotRun {
        /// The command.
        program: String,
        /// What the system said.
        error: std::io::Error,
    },
    /// There is no key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// There is no profile.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// It is done, but the profile does not know.
    #[error("done, but not remembered: {0}")]
    Unremembered(ProfileError),
}

impl Failure {
    /// A refusal for this reason.
    pub fn denied(message: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Denied { message: message.into(), reason: reason.into() }
    }

    /// A refusal with this code leads there; whatever else went wrong leads where it always does.
    pub fn advised(error: ApiError, code: &str, next: impl FnOnce() -> String) -> Self {
        match error {
            ApiError::Refused { code: ref refused, .. } if refused == code => Self::Advised { error, next: next() },
            error => Self::Api(error),
        }
    }

    /// A file that cannot be used, and what names it.
    pub fn file(named: impl Into<String>, path: &Path, problem: impl Into<String>) -> Self {
        Self::File { named: named.into(), path: path.to_owned(), problem: problem.into() }
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        match self {
            Self::Usage(_) | Self::Profile(ProfileError::Name(_)) | Self::Api(ApiError::Url(_)) => USAGE,
            Self::Denied { .. } => DENIED,
            Self::NotRun { error, .. } if error.kind() == std::io::ErrorKind::NotFound => NO_SUCH_COMMAND,
            Self::NotRun { .. } => NOT_EXECUTABLE,
            Self::Unreachable(_) | Self::Api(ApiError::Unreachable { .. }) => UNREACHABLE,
            Self::Api(ApiError::Refused { status, code, .. })
            | Self::Advised { error: ApiError::Refused { status, code, .. }, .. } => code_of(*status, code),
            Self::Failed(_)
            | Self::File { .. }
            | Self::Api(_)
            | Self::Advised { .. }
            | Self::Key(_)
            | Self::Profile(_)
            | Self::Unremembered(_) => FAILED,
        }
    }

    /// All of it for programs: the text, the next step, and what it is called.
    pub fn value(&self) -> Value {
        let text = self.to_string();
        let (message, embedded) = text.split_once("\nNext: ").unzip();
        let code = match self {
            Self::Api(ApiError::Refused { code, .. }) | Self::Advised { error: ApiError::Refused { code, .. }, .. }
                if !code.is_empty() =>
            {
                code
            }
            _ => match self.code() {
                USAGE => "USAGE",
                DENIED => "DENIED",
                UNREACHABLE => "UNREACHABLE",
                _ => "FAILED",
            },
        };
        let reason = match self {
            Self::Api(ApiError::Refused { reason, .. })
            | Self::Advised { error: ApiError::Refused { reason, .. }, .. } => reason.clone(),
            Self::Denied { reason, .. } => Some(reason.clone()).filter(|reason| !reason.is_empty()),
            _ => None,
        };
        let (message, next) = (message.unwrap_or(&text), self.next().or(embedded.map(Cow::Borrowed)));
        let mut value = json!({ "error": { "code": code, "message": message, "next": next, "reason": reason } });
        if let Self::Api(error) = self
            && let Some(wait) = error.retry_after()
        {
            value["error"]["retryAfterSeconds"] = json!(wait.as_secs());
        }
        value
    }

    /// What to do about it, where that is known.
    pub fn next(&self) -> Option<Cow<'_, str>> {
        let wait = match self {
            Self::Api(ApiError::Refused { status: 429, retry_after: Some(wait), .. }) => wait.as_secs(),
            Self::Advised { next, .. } => return Some(Cow::Borrowed(next)),
            _ => return self.known_next().map(Cow::Borrowed),
        };
        let plural = if wait == 1 { "" } else { "s" };
        Some(
            format!("wait {wait} second{plural}, then do the same again; the limits are settings of the control plane")
                .into(),
        )
    }

    fn known_next(&self) -> Option<&'static str> {
        match self {
            Self::Denied { reason, .. } => after(reason),
            Self::Api(ApiError::Refused { status, code, reason, .. }) => {
                reason.as_deref().and_then(after).or_else(|| after_code(code)).or_else(|| after_status(*status))
            }
            Self::Api(ApiError::Unreachable { error, .. }) => {
                let trust = "give the authority that signed its certificate, with --ca FILE or COUNTERSIGN_CA";
                about_certificate(&innermost(error), trust)
                    .or(Some("is it running, and is --url (COUNTERSIGN_URL) right?"))
            }
            Self::Api(ApiError::Url(_)) => Some("--url https://HOST:PORT, or COUNTERSIGN_URL"),
            Self::Api(ApiError::Unreadable(_)) => Some("is --url (COUNTERSIGN_URL) that of a control plane?"),
            Self::Api(ApiError::Key(error)) | Self::Key(error) => after_key(error),
            Self::NotRun { .. } => Some("countersign agent exec -- CMD runs a program that is found in PATH"),
            Self::File { .. } => Some("is that the file that is meant?"),
            Self::Profile(ProfileError::Malformed { .. }) => Some("mend the file or delete it"),
            Self::Profile(ProfileError::File { .. }) | Self::Unremembered(_) => {
                Some("set XDG_CONFIG_HOME to a folder that can be written")
            }
            Self::Api(ApiError::Authority(_))
            | Self::Advised { .. }
            | Self::Profile(_)
            | Self::Usage(_)
            | Self::Failed(_)
            | Self::Unreachable(_) => None,
        }
    }
}

/// What the control plane finds wrong with a request is wrong use; what it keeps to itself is denied.
fn code_of(status: u16, code: &str) -> u8 {
    match (status, code) {
        (400, "VALIDATION_ERROR") => USAGE,
        (400, "INVALID_SIGNATURE") | (401 | 403 | 404, _) => DENIED,
        _ => FAILED,
    }
}

/// What to do about a server's certificate, if that is what TLS says; `trust` is for an authority nobody named.
pub fn about_certificate(cause: &str, trust: &'static str) -> Option<&'static str> {
    let problem = cause.strip_prefix("invalid peer certificate: ")?;
    let about = |words: &[&str]| words.iter().any(|word| problem.contains(word));
    Some(if about(&["UnknownIssuer", "BadSignature"]) {
        trust
    } else if about(&["not valid for name", "NotValidForName"]) {
        "write the URL with a name that the certificate is made for"
    } else if about(&["expired", "Expired", "not valid yet", "NotValidYet"]) {
        "its operator renews it; or is the clock of this machine wrong?"
    } else {
        "is that the server that is meant? Its certificate is no good"
    })
}

fn after_key(error: &KeyError) -> Option<&'static str> {
    match error {
        KeyError::File { error, .. } if error.kind() == std::io::ErrorKind::NotFound => {
            Some("`countersign agent keygen` makes a key; is the path right?")
        }
        KeyError::File { error, .. } if error.kind() == std::io::ErrorKind::AlreadyExists => {
            Some("no key is ever overwritten: for another agent, take another --profile or --key")
        }
        KeyError::Malformed(_) => Some("`countersign agent keygen` makes a key of the right kind"),
        KeyError::Signer { .. } => Some(
            "it gets the nonce on standard input and must print its signature (ECDSA P-256, SHA-256), as hex or bytes",
        ),
        KeyError::File { .. } | KeyError::Encoding => None,
    }
}

/// By the reasons of `countersign_identity::Reason`.
fn after(reason: &str) -> Option<&'static str> {
    Some(match reason {
        "service_key_missing" => "set COUNTERSIGN_SERVICE_KEY; `countersign key create` makes a key",
        "service_key_invalid" => "look at COUNTERSIGN_SERVICE_KEY; `countersign key create` makes another key",
        "scope_insufficient" => "use a key made with `countersign key create --scope full`",
        "human_token_missing" | "human_token_invalid" | "human_token_expired" => {
            "set COUNTERSIGN_HUMAN_TOKEN to a token of your identity provider; if there is none, the operator mints \
             one: countersign-control-plane human-token mint --subject NAME"
        }
        "human_issuer_unavailable" => "try again; is the identity provider of the control plane up?",
        "not_yours" => {
            "is that yours? A person's token is good for that person's agents and services, a service's key for that service"
        }
        "admin_required" => "ask an administrator",
        "token_audience_mismatch" | "token_unbound" => "countersign agent login --service SERVICE",
        "token_expired" | "token_superseded" | "token_revoked" | "token_key_unknown" => "countersign agent login",
        "no_role" | "role_missing" | "permission_missing" => {
            "ask the service for a role: countersign role assign ROLE --agent AGENT"
        }
        "agent_suspended" => "its owner may say: countersign agent reactivate AGENT",
        "agent_revoked" => "this is for good; a new agent begins with: countersign agent keygen --profile NAME",
        "challenge_expired" | "challenge_used" => "try again",
        "token_malformed" | "token_signature_invalid" | "token_claims_invalid" => {
            "is it a token of this control plane? countersign agent login gets one"
        }
        _ => return None,
    })
}

fn after_code(code: &str) -> Option<&'static str> {
    Some(match code {
        "AGENT_NOT_FOUND" => "`countersign agent show` says which agent the profile holds",
        "SERVICE_NOT_FOUND" => "look at --service (COUNTERSIGN_SERVICE_ID); `countersign service list` shows yours",
        "ROLE_NOT_FOUND" | "CONFLICT" => "`countersign role list` shows what there is",
        "WEBHOOK_NOT_FOUND" => {
            "`countersign webhook list` shows what there is; with --deployment, those for all services"
        }
        "NOT_FOUND" => {
            "`countersign key list` and `countersign signing-key list` show the keys; is there a path in --url (COUNTERSIGN_URL) that is too much?"
        }
        "VALIDATION_ERROR" => "the same command with --help says what is wanted",
        "INVALID_SIGNATURE" => "does this key belong to this agent? `countersign agent show` says which it is",
        _ => return None,
    })
}

const fn after_status(status: u16) -> Option<&'static str> {
    if status >= 500 { Some("try again") } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::{CertificateError, Error, pki_types::ServerName};

    #[test]
    fn what_is_wrong_with_a_certificate_leads_to_what_mends_it() {
        let expected = ServerName::try_from("host.example").unwrap();
        let name = CertificateError::NotValidForNameContext { expected, presented: vec!["other".into()] };
        for (error, next) in [
            (CertificateError::UnknownIssuer, "--ca"),
            (CertificateError::BadSignature, "--ca"),
            (name, "a name"),
            (CertificateError::NotValidForName, "a name"),
            (CertificateError::Expired, "renews"),
            (CertificateError::NotValidYet, "clock"),
            (CertificateError::Revoked, "is meant"),
        ] {
            let cause = Error::InvalidCertificate(error).to_string();
            let said = about_certificate(&cause, "--ca").unwrap();
            assert!(said.contains(next), "{cause}: {said}");
        }
        assert_eq!(about_certificate("Connection refused (os error 111)", "--ca"), None);
    }
}
