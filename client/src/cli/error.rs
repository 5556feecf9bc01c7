//! Errors of commands: message, exit code and JSON form. [`super::hints`] has the next steps.

use super::hints;
use countersign_client::{ApiError, IssuerError, KeyError, ProfileError};
use serde_json::{Map, Value, json};
use std::{
    borrow::Cow,
    path::{Path, PathBuf},
};

/// The exit code of a failure.
const FAILED: u8 = 1;
/// The exit code of wrong usage.
pub const USAGE: u8 = 2;
/// The exit code if access is denied or an object does not exist.
const DENIED: u8 = 3;
/// The exit code if a server is unreachable.
const UNREACHABLE: u8 = 4;
/// `apply --dry-run --exit-code` found changes.
const WOULD_CHANGE: u8 = 10;

/// The exit code if a command is not executable, as in shells.
const NOT_EXECUTABLE: u8 = 126;
/// The exit code if a command is not found, as in shells.
const COMMAND_NOT_FOUND: u8 = 127;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The arguments are wrong or incomplete.
    #[error("{0}")]
    Usage(String),
    /// The action failed.
    #[error("{0}")]
    Failed(String),
    /// Access is denied.
    #[error("{message}")]
    Denied {
        /// The message.
        message: String,
        /// The reason why access is denied, such as `agent_suspended`; may be empty.
        reason: String,
    },
    /// An object does not exist, as the command found out without an error of the API.
    #[error("{message}")]
    NotFound {
        /// The error code that the API has for an object that does not exist.
        code: &'static str,
        /// The message.
        message: String,
    },
    /// A service did not answer.
    #[error("{0}")]
    Unreachable(String),
    /// A request to the control plane failed.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// A request to the control plane failed, and the command has a better hint than [`super::hints`].
    #[error("{error}")]
    ApiWithHint {
        /// The error.
        error: ApiError,
        /// The hint.
        hint: Box<str>,
    },
    /// A request to the issuer of a human user's tokens failed.
    #[error(transparent)]
    Issuer(#[from] IssuerError),
    /// A file cannot be used.
    #[error("{source_name} {}: {problem}", path.display())]
    File {
        /// The option or the profile that contains the path.
        source_name: String,
        /// The path.
        path: PathBuf,
        /// What is wrong with the file.
        problem: String,
    },
    /// The command of `agent exec` cannot be started.
    #[error("{program}: {error}")]
    NotStarted {
        /// The command.
        program: String,
        /// The error of the operating system.
        error: std::io::Error,
    },
    /// A key cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A profile cannot be used.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The change is done, but it is not in force at every sidecar, or that is unknown.
    #[error("{message}")]
    NotEnforced {
        /// The error code: `NOT_ENFORCED` or `ENFORCEMENT_UNKNOWN`.
        code: &'static str,
        /// The message.
        message: String,
    },
    /// `apply --dry-run --exit-code` found changes.
    #[error("{count} {} would be made", if *count == 1 { "change" } else { "changes" })]
    WouldChange {
        /// The number.
        count: usize,
    },
    /// The action succeeded, but the profile was not saved.
    #[error("done, but not saved in the profile: {0}")]
    NotSaved(ProfileError),
}

impl CliError {
    /// An error for denied access, with the reason of the refusal.
    pub fn denied(message: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Denied { message: message.into(), reason: reason.into() }
    }

    /// An error for an object that does not exist, with the error code that the API has for it.
    pub fn not_found(code: &'static str, message: impl Into<String>) -> Self {
        Self::NotFound { code, message: message.into() }
    }

    /// Replaces the hint of an API error if the error has this code.
    pub fn with_hint(error: ApiError, code: &str, hint: impl FnOnce() -> String) -> Self {
        match error {
            ApiError::Refused { code: ref actual, .. } if actual == code => {
                Self::ApiWithHint { error, hint: hint().into() }
            }
            error => Self::Api(error),
        }
    }

    /// An error about a file. `source` is the option or the profile that contains the path.
    pub fn file(source: impl Into<String>, path: &Path, problem: impl Into<String>) -> Self {
        Self::File { source_name: source.into(), path: path.to_owned(), problem: problem.into() }
    }

    /// The exit code.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_)
            | Self::Profile(ProfileError::Name(_))
            | Self::Api(ApiError::Url(_))
            | Self::Issuer(IssuerError::Url(_)) => USAGE,
            Self::Denied { .. } | Self::NotFound { .. } | Self::Issuer(IssuerError::Refused { .. }) => DENIED,
            Self::NotStarted { error, .. } if error.kind() == std::io::ErrorKind::NotFound => COMMAND_NOT_FOUND,
            Self::NotStarted { .. } => NOT_EXECUTABLE,
            Self::WouldChange { .. } => WOULD_CHANGE,
            Self::Unreachable(_)
            | Self::Issuer(IssuerError::Unreachable { .. })
            | Self::Api(ApiError::Unreachable { .. })
            | Self::ApiWithHint { error: ApiError::Unreachable { .. }, .. } => UNREACHABLE,
            Self::Api(ApiError::Refused { status, code, .. })
            | Self::ApiWithHint { error: ApiError::Refused { status, code, .. }, .. } => exit_code_of(*status, code),
            Self::Failed(_)
            | Self::Issuer(_)
            | Self::File { .. }
            | Self::Api(_)
            | Self::ApiWithHint { .. }
            | Self::Key(_)
            | Self::Profile(_)
            | Self::NotEnforced { .. }
            | Self::NotSaved(_) => FAILED,
        }
    }

    /// The message, and the next step if there is a known one.
    pub fn message_and_next(&self) -> (String, Option<String>) {
        let text = self.to_string();
        let (message, next) = match text.split_once("\nNext: ") {
            Some((message, next)) => (message.to_owned(), Some(next.to_owned())),
            None => (text, None),
        };
        (message, self.hint().map(Cow::into_owned).or(next))
    }

    /// The error as JSON, in the form of the API: `{"error": {"code", "message", "details", …}}`. `next` is the next step
    /// and `usage` the usage line of the command.
    pub fn json(&self, next: Option<&str>, usage: Option<&str>) -> Value {
        let message = self.message_and_next().0;
        let mut error = json!({ "code": self.code(), "message": message, "next": next, "reason": self.reason() });
        if let Some(usage) = usage {
            error["usage"] = json!(usage);
        }
        if let Self::Api(ApiError::Refused { details, retry_after, .. })
        | Self::ApiWithHint { error: ApiError::Refused { details, retry_after, .. }, .. } = self
        {
            let fields = [
                ("details", Some(json!(details.fields)).filter(|_| !details.fields.is_empty())),
                ("requestId", details.request_id.as_ref().map(|id| json!(id))),
                ("retryAfterSeconds", retry_after.map(|wait| json!(wait.as_secs()))),
            ];
            let fields: Map<_, _> =
                fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
            error.as_object_mut().into_iter().for_each(|error| error.extend(fields.clone()));
        }
        json!({ "error": error })
    }

    /// The next step for this kind of error, if there is one.
    pub fn hint(&self) -> Option<Cow<'_, str>> {
        hints::for_error(self)
    }

    /// The error code of the API, or a code of the command line for its own errors.
    fn code(&self) -> &str {
        match self {
            Self::Api(ApiError::Refused { code, .. })
            | Self::ApiWithHint { error: ApiError::Refused { code, .. }, .. }
                if !code.is_empty() =>
            {
                code
            }
            Self::NotFound { code, .. } | Self::NotEnforced { code, .. } => code,
            _ => match self.exit_code() {
                USAGE => "USAGE",
                DENIED => "DENIED",
                UNREACHABLE => "UNREACHABLE",
                WOULD_CHANGE => "WOULD_CHANGE",
                _ => "FAILED",
            },
        }
    }

    fn reason(&self) -> Option<&str> {
        match self {
            Self::Api(ApiError::Refused { reason, .. })
            | Self::ApiWithHint { error: ApiError::Refused { reason, .. }, .. } => reason.as_deref(),
            Self::Denied { reason, .. } => Some(reason.as_str()).filter(|reason| !reason.is_empty()),
            _ => None,
        }
    }
}

/// A request with an invalid value is wrong usage: the values come from the arguments.
fn exit_code_of(status: u16, code: &str) -> u8 {
    match (status, code) {
        (400, "VALIDATION_ERROR") => USAGE,
        (400, "INVALID_SIGNATURE" | "invalid_grant" | "invalid_scope" | "invalid_target" | "unauthorized_client")
        | (401 | 403 | 404, _) => DENIED,
        _ => FAILED,
    }
}
