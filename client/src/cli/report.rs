//! Reports an error to the user: the message and the next step as text or JSON, and the exit code.
//!
//! No command imports this module: commands return errors, and `main` reports them.

use super::{
    error::{Cause, CliError},
    hints,
    messages::{Messages, write_json, write_line},
    output::OutputFormat,
    usage::{argument_for_field, help_command, usage_line},
};
use countersign_client::{ApiError, IssuerError, ProfileError};
use serde_json::{Value, json};
use std::{borrow::Cow, process::ExitCode};

// The exit codes, as `countersign --help` describes them.
const FAILED: u8 = 1;
pub const USAGE: u8 = 2;
const DENIED: u8 = 3;
const UNREACHABLE: u8 = 4;
const WOULD_CHANGE: u8 = 10;

// The exit codes of shells.
const NOT_EXECUTABLE: u8 = 126;
const COMMAND_NOT_FOUND: u8 = 127;

/// Writes the error to standard error, and returns the exit code.
pub fn report(error: &CliError, messages: &Messages) -> ExitCode {
    let code = exit_code(&error.cause);
    let next = next_step(error).map(|next| messages.hint(&next));
    let usage = (code == USAGE).then(usage_line);
    match messages.format {
        OutputFormat::Text => {
            let lines = [("Usage", usage), ("Next", next)].into_iter().filter(|_| !messages.quiet);
            let lines: String = lines.filter_map(|(title, text)| Some(format!("\n{title}: {}", text?))).collect();
            write_line(&format!("countersign: {error}{lines}"));
        }
        OutputFormat::Json => write_json(&json(error, next.as_deref(), usage.as_deref())),
    }
    code.into()
}

/// The next step. If the API refused values, the step names the arguments that set them. Fields that no argument sets are left out.
fn next_step(error: &CliError) -> Option<Cow<'_, str>> {
    let hint = hints::next_step(error);
    let Cause::Api(ApiError::Refused { code, details, .. }) = &error.cause else { return hint };
    if hint.is_some() || code != "VALIDATION_ERROR" {
        return hint;
    }
    let fields = details.fields.get("fields").and_then(Value::as_object).into_iter().flatten();
    let arguments: Vec<_> = fields.filter_map(|(field, _)| argument_for_field(field)).collect();
    Some(if arguments.is_empty() {
        format!("`{}` shows the arguments", help_command()).into()
    } else {
        format!("correct {}", arguments.join(" and ")).into()
    })
}

fn exit_code(cause: &Cause) -> u8 {
    match cause {
        Cause::Usage(_)
        | Cause::Profile(ProfileError::Name(_))
        | Cause::Api(ApiError::Url(_))
        | Cause::Issuer(IssuerError::Url(_)) => USAGE,
        Cause::Denied { .. } | Cause::NotFound { .. } | Cause::Issuer(IssuerError::Refused { .. }) => DENIED,
        Cause::NotStarted { error, .. } if error.kind() == std::io::ErrorKind::NotFound => COMMAND_NOT_FOUND,
        Cause::NotStarted { .. } => NOT_EXECUTABLE,
        Cause::WouldChange { .. } => WOULD_CHANGE,
        Cause::Unreachable(_)
        | Cause::Issuer(IssuerError::Unreachable { .. })
        | Cause::Api(ApiError::Unreachable { .. }) => UNREACHABLE,
        // A value that the API refuses comes from the arguments, so it is wrong usage.
        Cause::Api(ApiError::Refused { status, code, .. }) => match (status, code.as_str()) {
            (400, "VALIDATION_ERROR") => USAGE,
            (
                400,
                "INVALID_SIGNATURE" | "invalid_grant" | "invalid_scope" | "invalid_target" | "unauthorized_client",
            )
            | (401 | 403 | 404, _) => DENIED,
            _ => FAILED,
        },
        Cause::Failed(_)
        | Cause::Issuer(_)
        | Cause::File { .. }
        | Cause::Api(_)
        | Cause::Key(_)
        | Cause::Profile(_)
        | Cause::NotEnforced { .. }
        | Cause::NotSaved(_) => FAILED,
    }
}

/// The error in the form of the API: `{"error": {"code", "message", "details", …}}`.
fn json(error: &CliError, next: Option<&str>, usage: Option<&str>) -> Value {
    let code = code(&error.cause);
    let mut json = json!({ "code": code, "message": error.to_string(), "next": next, "reason": null });
    if let Some(usage) = usage {
        json["usage"] = json!(usage);
    }
    match &error.cause {
        Cause::Denied { reason, .. } if !reason.is_empty() => json["reason"] = json!(reason),
        Cause::Api(ApiError::Refused { reason, details, retry_after, .. }) => {
            json["reason"] = json!(reason);
            if !details.fields.is_empty() {
                json["details"] = json!(details.fields);
            }
            if let Some(id) = &details.request_id {
                json["requestId"] = json!(id);
            }
            if let Some(wait) = retry_after {
                json["retryAfterSeconds"] = json!(wait.as_secs());
            }
        }
        _ => {}
    }
    json!({ "error": json })
}

/// The error code: the code of the API, or for errors of the command line itself, one code for each exit code.
fn code(cause: &Cause) -> &str {
    match cause {
        Cause::Api(ApiError::Refused { code, .. }) if !code.is_empty() => code,
        Cause::NotFound { code, .. } | Cause::NotEnforced { code, .. } => code,
        _ => match exit_code(cause) {
            USAGE => "USAGE",
            DENIED => "DENIED",
            UNREACHABLE => "UNREACHABLE",
            WOULD_CHANGE => "WOULD_CHANGE",
            _ => "FAILED",
        },
    }
}
