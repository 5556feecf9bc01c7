//! The option `--wait`: waits until the sidecars of a service decide with a change. A receipt says where the change is in force.
//!
//! Invariant: a wait begins after its change and sends only requests that read, so the change is never repeated.

mod text;

use super::{
    args::{CONNECTION, HumanTokenArg, ServerArgs, ServiceArg, ServiceKeyArg},
    complete,
    context::Context,
    error::CliError,
    output::{CommandOutput, OutputFormat},
    table::details,
    time::positive_duration,
};
use clap::Args;
use clap_complete::ArgValueCandidates;
use countersign_client::{
    Api, ApiError,
    api::{Enforcement, LONGEST_ENFORCEMENT_WAIT, ServiceApi},
};
use serde_json::{Value, json};
use std::time::Duration;
pub use text::sidecars;
use text::{enforcement_text, next, not_enforced, unknown, unknown_because};

/// A revision that every control plane has. [`ReceiptArgs::wait`] asks for its receipt, to see if the credential may read receipts.
const FIRST_REVISION: u64 = 1;

const LONGEST_WAIT: Duration = Duration::from_hours(1);

/// How long after the end of a wait the last answer of the control plane may arrive.
const GRACE: Duration = Duration::from_secs(5);

/// The shortest pause before the next request after an outage of the control plane.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// What a receipt says if no sidecar is connected, after a change that ends access.
pub const API_REFUSES_AT_ONCE: &str = "the API refuses at once";

/// What a receipt says if no sidecar is connected, after a change that gives access.
pub const API_ALLOWS_AT_ONCE: &str = "the API allows at once";

/// How long a command waits for the sidecars of its service, if at all.
#[derive(Args)]
pub struct WaitArgs {
    /// Wait until every sidecar of the service decides with the change, at most this long: 1s to 1h, 30s without a
    /// value. If the time is over, the exit code is 1; the change is done nevertheless
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true, default_missing_value = "30s",
        value_parser = parse_wait)]
    wait: Option<Duration>,
}

/// The options of a command that can wait, and whose change can concern several services.
#[derive(Args)]
pub struct ReceiptArgs {
    #[command(flatten)]
    wait: WaitArgs,
    /// The service whose sidecars --wait waits for; the change is not limited to it [default: the service that this
    /// profile created last]
    #[arg(long, env = "COUNTERSIGN_SERVICE_ID", help_heading = CONNECTION,
        add = ArgValueCandidates::new(complete::service_ids))]
    service: Option<String>,
    #[command(flatten)]
    key: ServiceKeyArg,
}

pub struct Wait {
    /// The service, with a credential that may read its sidecars.
    pub service: ServiceApi,
    pub at_most: Duration,
}

/// What a command says about its change: the revision, and after a wait, where the change is in force.
pub struct Receipt {
    revision: u64,
    /// The result of the wait; `None` without `--wait`.
    result: Option<WaitResult>,
}

enum WaitResult {
    /// The last answer of the control plane, and the longest wait that the user allowed.
    Known(Box<Enforcement>, Duration),
    /// The control plane did not say whether the change is in force.
    Unknown(CliError),
}

impl WaitArgs {
    pub fn of(&self, service: &ServiceApi) -> Option<Wait> {
        self.wait.map(|at_most| Wait { service: service.clone(), at_most })
    }
}

impl ReceiptArgs {
    /// Prepares a wait: finds the service and a credential that may read its sidecars. Commands call it before their change, so that
    /// an error here changes nothing. `None` without `--wait`.
    pub async fn wait(
        &self,
        context: &Context,
        api: &Api,
        server: &ServerArgs,
        human: &HumanTokenArg,
    ) -> Result<Option<Wait>, CliError> {
        let Self { wait, service, key } = self;
        if wait.wait.is_none() {
            return Ok(None);
        }
        let id = context.service(&ServiceArg { service: service.clone() })?;
        let service = api.service(&id, &key.or_human(context, server, human).await?);
        match service.enforcement(FIRST_REVISION, Duration::ZERO).await {
            // Other errors, such as an outage, may be over when the wait begins, so they do not prevent the change.
            Err(error) if is_no_access(&error) => Err(context.with_context_hint(error.into())),
            Ok(_) | Err(_) => Ok(wait.of(&service)),
        }
    }
}

/// Whether the control plane refuses to show the receipts of a service to a credential.
fn is_no_access(error: &ApiError) -> bool {
    match error {
        ApiError::Refused { status, code, .. } => matches!(status, 401 | 403) || code == "SERVICE_NOT_FOUND",
        _ => false,
    }
}

impl Receipt {
    /// The receipt of a command that cannot wait.
    pub const fn without_wait(revision: u64) -> Self {
        Self { revision, result: None }
    }

    /// Waits for a change that is done, if the user requests a wait.
    pub async fn of(context: &Context, wait: Option<Wait>, revision: u64) -> Self {
        let result = match wait {
            None => None,
            Some(wait) => Some(match wait_for_enforcement(context, &wait, revision).await {
                Ok(enforcement) => WaitResult::Known(Box::new(enforcement), wait.at_most),
                Err(error) => WaitResult::Unknown(error),
            }),
        };
        Self { revision, result }
    }

    /// The text of the command: its rows, the revision, and after a wait where the change is in force. `without_sidecars` says what
    /// happens if no sidecar is connected: [`API_REFUSES_AT_ONCE`] or [`API_ALLOWS_AT_ONCE`].
    pub fn details(&self, rows: impl IntoIterator<Item = (&'static str, String)>, without_sidecars: &str) -> String {
        let enforced = self.result.as_ref().map(|result| match result {
            WaitResult::Known(enforcement, _) => enforcement_text(enforcement, without_sidecars),
            WaitResult::Unknown(_) => "unknown".to_owned(),
        });
        let revision = ("revision", self.revision.to_string());
        details(rows.into_iter().chain([revision]).chain(enforced.map(|text| ("enforced", text))))
    }

    /// The output of the command: its text, and its JSON with the revision and the result of the wait. After a failed wait, the output
    /// has the error of the wait instead of `note`.
    pub fn output(self, text: impl Into<String>, mut json: Value, note: Option<&str>) -> CommandOutput {
        let Self { revision, result } = self;
        if let Some(fields) = json.as_object_mut() {
            fields.insert("revision".to_owned(), json!(revision));
            fields.extend(result.as_ref().map(|result| ("enforcement".to_owned(), result.json())));
        }
        let error = result.and_then(WaitResult::error);
        let note = note.filter(|_| error.is_none()).unwrap_or_default();
        CommandOutput::new(text, json).with_note(note).with_error(error)
    }
}

impl WaitResult {
    fn json(&self) -> Value {
        match self {
            Self::Known(enforcement, _) => json!(enforcement),
            Self::Unknown(_) => Value::Null,
        }
    }

    fn error(self) -> Option<CliError> {
        match self {
            Self::Known(enforcement, _) if enforcement.enforced => None,
            Self::Known(enforcement, waited) => Some(not_enforced(&enforcement, waited)),
            Self::Unknown(error) => Some(error),
        }
    }
}

/// Parses the value of `--wait`, and rounds it up to whole seconds.
pub fn parse_wait(text: &str) -> Result<Duration, String> {
    let is_allowed = |wait: &Duration| *wait >= Duration::from_secs(1) && *wait <= LONGEST_WAIT;
    let wait = positive_duration(text).ok().filter(is_allowed);
    let wait = wait.ok_or_else(|| "write a duration of 1s to 1h, such as 30s or 5m".to_owned())?;
    Ok(Duration::from_secs(wait.as_secs() + u64::from(wait.subsec_nanos() > 0)))
}

/// Waits until the change is in force everywhere, or the time is over. Returns the last answer of the control plane.
async fn wait_for_enforcement(context: &Context, wait: &Wait, revision: u64) -> Result<Enforcement, CliError> {
    let mut last = None;
    // The control plane may accept connections and never answer, so the wait itself has a timeout.
    let time_over = tokio::time::timeout(wait.at_most + GRACE, ask(context, wait, revision, &mut last)).await;
    match last {
        Some(Ok(enforcement)) => Ok(enforcement),
        Some(Err(error)) => Err(unknown_because(context, error, &next(revision))),
        None if time_over.is_err() => Err(unknown("the control plane does not answer", &next(revision))),
        None => Err(unknown("the time is over", &next(revision))),
    }
}

/// Asks the control plane until the answer is that the change is in force, an answer is refused, or the time is over. Keeps the
/// last answer in `last`, even if an outage follows.
async fn ask(context: &Context, wait: &Wait, revision: u64, last: &mut Option<Result<Enforcement, ApiError>>) {
    let Wait { service, at_most } = wait;
    let mut remaining = *at_most;
    while !remaining.is_zero() {
        let step = remaining.min(LONGEST_ENFORCEMENT_WAIT);
        // The control plane may answer before `step` is over that the change is not in force. We ask again only after `step`.
        let end_of_step = tokio::time::sleep(step);
        match service.enforcement(revision, step).await {
            Ok(answer) => {
                remaining -= step;
                let is_first = !matches!(last, Some(Ok(_)));
                let enforced = answer.enforced;
                if is_first && !enforced && !remaining.is_zero() {
                    report_wait(context, &answer, remaining);
                }
                *last = Some(Ok(answer));
                if enforced {
                    return;
                }
                end_of_step.await;
            }
            Err(error) if error.is_outage() => {
                let pause = error.retry_after().unwrap_or(RETRY_PAUSE).max(RETRY_PAUSE).min(remaining);
                remaining = remaining.saturating_sub(pause);
                if !matches!(last, Some(Ok(_))) {
                    *last = Some(Err(error));
                }
                tokio::time::sleep(pause).await;
            }
            Err(error) => {
                *last = Some(Err(error));
                return;
            }
        }
    }
}

/// Tells a person that the command still waits.
fn report_wait(context: &Context, answer: &Enforcement, remaining: Duration) {
    if context.format() == OutputFormat::Text {
        let missing = answer.sidecars.saturating_sub(answer.enforced_sidecars);
        let sidecars = sidecars(answer.sidecars);
        let seconds = remaining.as_secs();
        let text = format!("The change is done. Waiting for {missing} of {sidecars}, for {seconds} s more at most.");
        context.messages.note(&text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use countersign_client::api::Sidecar;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        wait: WaitArgs,
        agent: Option<String>,
    }

    fn receipt(result: Option<WaitResult>) -> CommandOutput {
        let receipt = Receipt { revision: 7, result };
        receipt.output("revoked", json!({ "revoked": true }), Some("Next: x"))
    }

    fn answer(enforced: bool, unconfirmed: Vec<Sidecar>) -> WaitResult {
        let sidecars = 1;
        let milliseconds = enforced.then_some(38);
        let enforced_sidecars = u64::from(enforced);
        let enforcement = Enforcement {
            revision: 7,
            enforced,
            sidecars,
            enforced_sidecars,
            expired_sidecars: 0,
            milliseconds,
            unconfirmed,
            refuses_by: None,
        };
        WaitResult::Known(Box::new(enforcement), Duration::from_secs(30))
    }

    #[test]
    fn wait_takes_a_duration_only_after_an_equals_sign() {
        for (arguments, seconds, agent) in [
            (&["x"][..], None, None),
            (&["x", "--wait"], Some(30), None),
            (&["x", "--wait", "agent_1"], Some(30), Some("agent_1")),
            (&["x", "--wait=5m", "agent_1"], Some(300), Some("agent_1")),
            (&["x", "--wait=1h"], Some(3600), None),
            (&["x", "--wait=1500ms"], Some(2), None),
        ] {
            let line = Line::try_parse_from(arguments).unwrap();
            let actual = (line.wait.wait.map(|wait| wait.as_secs()), line.agent.as_deref());
            assert_eq!(actual, (seconds, agent), "{arguments:?}");
        }
        for wrong in ["--wait=", "--wait=5", "--wait=0s", "--wait=999ms", "--wait=3601s", "--wait=soon"] {
            assert!(Line::try_parse_from(["x", wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn output_has_the_revision_and_the_result_of_the_wait() {
        let unknown = WaitResult::Unknown(unknown("x", "next"));
        for (output, expected, note, fails) in [
            (receipt(None), json!({ "revoked": true, "revision": 7 }), "Next: x", false),
            (
                receipt(Some(answer(true, Vec::new()))),
                json!({
                    "revoked": true, "revision": 7,
                    "enforcement": {
                        "revision": 7, "enforced": true, "sidecars": 1, "enforcedSidecars": 1, "milliseconds": 38,
                        "expiredSidecars": 0, "unconfirmed": [],
                    },
                }),
                "Next: x",
                false,
            ),
            (
                receipt(Some(answer(false, Vec::new()))),
                json!({
                    "revoked": true, "revision": 7,
                    "enforcement": {
                        "revision": 7, "enforced": false, "sidecars": 1, "enforcedSidecars": 0, "expiredSidecars": 0, "unconfirmed": [],
                    },
                }),
                "",
                true,
            ),
            (receipt(Some(unknown)), json!({ "revoked": true, "revision": 7, "enforcement": null }), "", true),
        ] {
            let actual = (output.json(), output.note.as_str(), output.error.is_some());
            assert_eq!(actual, (Some(&expected), note, fails));
        }
    }
}
