//! Why a command failed, as data. `report` turns it into text, JSON and an exit code.

use countersign_client::{ApiError, IssuerError, KeyError, ProfileError};
use std::path::{Path, PathBuf};

/// Why a command failed, and what the user can do next.
#[derive(Debug, thiserror::Error)]
#[error("{cause}")]
pub struct CliError {
    pub cause: Cause,
    /// The next step, if the command knows a better one than `hints`.
    pub next: Option<Box<str>>,
}

#[derive(Debug, thiserror::Error)]
pub enum Cause {
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    Failed(String),
    #[error("{message}")]
    Denied {
        message: String,
        /// The reason why access is denied, such as `agent_suspended`; may be empty.
        reason: String,
    },
    /// The command found out by itself that an object does not exist: the API returned no error.
    #[error("{message}")]
    NotFound {
        /// The error code that the API has for an object that does not exist.
        code: &'static str,
        message: String,
    },
    /// A service did not answer.
    #[error("{0}")]
    Unreachable(String),
    #[error(transparent)]
    Api(#[from] ApiError),
    /// A request to the issuer of a human user's tokens failed.
    #[error(transparent)]
    Issuer(#[from] IssuerError),
    #[error("{source_name} {}: {problem}", path.display())]
    File {
        /// The option or the profile that contains the path.
        source_name: String,
        path: PathBuf,
        problem: String,
    },
    /// The command of `agent exec` cannot be started.
    #[error("{program}: {error}")]
    NotStarted { program: String, error: std::io::Error },
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The change is done, but not in force at every sidecar, or the control plane did not say whether it is.
    #[error("{message}")]
    NotEnforced {
        /// The error code: `NOT_ENFORCED` or `ENFORCEMENT_UNKNOWN`.
        code: &'static str,
        message: String,
    },
    /// `apply --dry-run --exit-code` found changes.
    #[error("{count} {} would be made", if *count == 1 { "change" } else { "changes" })]
    WouldChange { count: usize },
    /// The action succeeded, but the profile was not saved.
    #[error("done, but not saved in the profile: {0}")]
    NotSaved(ProfileError),
}

impl<C: Into<Cause>> From<C> for CliError {
    fn from(cause: C) -> Self {
        Self { cause: cause.into(), next: None }
    }
}

impl CliError {
    pub fn usage(message: impl Into<String>) -> Self {
        Cause::Usage(message.into()).into()
    }

    pub fn missing(what: &str, next: &str) -> Self {
        Self::usage(format!("{what} is not set")).with_next(next)
    }

    pub fn failed(message: impl Into<String>) -> Self {
        Cause::Failed(message.into()).into()
    }

    pub fn denied(message: impl Into<String>, reason: impl Into<String>) -> Self {
        Cause::Denied { message: message.into(), reason: reason.into() }.into()
    }

    /// A file cannot be used. `source` is the option or the profile that contains the path.
    pub fn file(source: impl Into<String>, path: &Path, problem: impl Into<String>) -> Self {
        Cause::File { source_name: source.into(), path: path.to_owned(), problem: problem.into() }.into()
    }

    pub fn has_reason(&self, reason: &str) -> bool {
        matches!(&self.cause, Cause::Api(ApiError::Refused { reason: Some(actual), .. }) if actual == reason)
    }

    pub fn with_next(self, next: impl Into<Box<str>>) -> Self {
        Self { next: Some(next.into()), ..self }
    }

    /// Sets the next step if the API refused the request with this code. It replaces no step that is set already.
    pub fn with_next_for(self, code: &str, next: impl FnOnce() -> String) -> Self {
        match &self.cause {
            Cause::Api(ApiError::Refused { code: actual, .. }) if actual == code && self.next.is_none() => {
                self.with_next(next())
            }
            _ => self,
        }
    }
}
