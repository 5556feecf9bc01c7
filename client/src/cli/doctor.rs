//! `countersign doctor`: checks the profile, the connection and the credentials, with a next step for each problem.
//!
//! Invariant: without `--login`, `doctor` changes nothing, neither on this machine nor at the control plane.

use super::{
    agent::{UNKNOWN_AGENT_AT_LOGIN, public_key_hash},
    hints::next_step,
    ids::service_id,
    login::SignerArgs,
    messages::Messages,
    prelude::{Cause, CliError, CommandOutput, Context, ManagerArgs, Rows, ServerArgs},
    stored_login::{stored_login, unexpired_token},
};
use clap::Args;
use countersign_client::{
    Api, ApiError,
    api::{Health, PageStart, replace_unprintable},
    clock,
};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::path::Path;

pub const HELP: &str = "\
The command creates nothing and does not log in. With --login it tests a login of the profile's agent, and revokes its session. \
The exit code is 0 if no check failed, otherwise the exit code of the first failed check.

Examples:
  $ countersign doctor
  $ countersign doctor --login

Next: follow the lines that begin with `Next`";

/// If the clock of this machine differs by more than this number of seconds, `doctor` warns. Verifiers tolerate the same difference
/// in `iat` and `nbf` of tokens, but none in `exp`.
const LEEWAY: i64 = 30;

#[derive(Args)]
pub struct DoctorArgs {
    #[command(flatten)]
    manager: ManagerArgs,
    /// Also test a login of the profile's agent, and revoke its session
    #[arg(long)]
    login: bool,
}

enum CheckResult {
    Ok(String),
    /// What was checked works, but needs attention: the problem and the next step.
    Warning(String, String),
    /// There is nothing to check, or the check is impossible: the reason.
    Skipped(&'static str),
    Failed(CliError),
}

impl From<CliError> for CheckResult {
    fn from(error: CliError) -> Self {
        match &error.cause {
            // A refusal because of too many requests says nothing about what is checked, so it is no failure.
            Cause::Api(api) if api.is_rate_limited() => {
                Self::Warning(error.to_string(), next_step(&error).map(String::from).unwrap_or_default())
            }
            _ => Self::Failed(error),
        }
    }
}

impl From<ApiError> for CheckResult {
    fn from(error: ApiError) -> Self {
        CliError::from(error).into()
    }
}

struct Check {
    name: &'static str,
    result: CheckResult,
}

/// The checks that need a connection, in their order after the check of the connection itself.
const CHECKS_WITH_CONNECTION: [&str; 5] = ["clock", "signing keys", "agent", "service key", "human token"];
const NOT_CHECKED: &str = "not checked, because the check of the control plane failed";

/// Runs all checks. Without a connection, reports the checks that need a connection as not checked.
pub async fn run(context: &Context, args: DoctorArgs) -> Result<CommandOutput, CliError> {
    let mut checks = vec![Check { name: "profile", result: check_profile(context) }];
    match connect(context, &args.manager.server).await {
        Err(error) => {
            checks.push(Check { name: "control plane", result: error.into() });
            checks.extend(CHECKS_WITH_CONNECTION.map(|name| Check { name, result: CheckResult::Skipped(NOT_CHECKED) }));
        }
        Ok((api, health)) => {
            checks.push(Check { name: "control plane", result: check_health(&health) });
            checks.push(Check { name: "clock", result: check_clock(&health) });
            checks.push(Check { name: "signing keys", result: check_signing_keys(&api).await });
            checks.push(Check { name: "agent", result: check_agent(context, &api, &args).await });
            checks.push(Check { name: "service key", result: check_service_key(context, &api, &args).await });
            checks.push(Check { name: "human token", result: check_human_token(context, &api, &args).await });
        }
    }
    Ok(report(&context.messages, checks))
}

fn check_profile(context: &Context) -> CheckResult {
    let path = match context.profiles.path(&context.name, "toml") {
        Ok(path) => path,
        Err(error) => return CliError::from(error).into(),
    };
    match context.profiles.is_writable(&context.name) {
        Ok(true) if path.exists() => CheckResult::Ok(path.display().to_string()),
        Ok(true) => CheckResult::Ok(format!("{} does not exist yet", path.display())),
        Ok(false) => {
            let next = "set XDG_CONFIG_HOME to a folder that you can write";
            CliError::failed(format!("{} cannot be written", path.display())).with_next(next).into()
        }
        Err(error) => CliError::from(error).into(),
    }
}

async fn connect(context: &Context, server: &ServerArgs) -> Result<(Api, Health), CliError> {
    let api = context.api(server)?;
    let health = api.health().await.map_err(|error| context.with_context_hint(error.into()))?;
    Ok((api, health))
}

fn check_health(health: &Health) -> CheckResult {
    let impaired = health.checks.iter().filter(|(_, state)| state.as_str() != "up");
    let impaired: Vec<_> = impaired.map(|(component, state)| format!("{component} {state}")).collect();
    let text = replace_unprintable(&[vec![health.status.clone()], impaired].concat().join(", "));
    match health.status.as_str() {
        "healthy" => CheckResult::Ok(text),
        "degraded" => CheckResult::Warning(text, "ask its operator to check its log: some functions fail".into()),
        _ => CliError::failed(format!("the server is {text}")).with_next("ask its operator to check its log").into(),
    }
}

fn check_clock(health: &Health) -> CheckResult {
    let Ok(server_time) = health.timestamp.parse::<Timestamp>() else {
        return ApiError::Unreadable("/health".into()).into();
    };
    let difference = server_time.as_second() - clock::now().seconds();
    let seconds = difference.abs();
    let direction = if difference > 0 { "behind" } else { "ahead of" };
    match seconds {
        0..=2 => CheckResult::Ok("in sync with the control plane".into()),
        3..=LEEWAY => CheckResult::Ok(format!("{seconds} s {direction} the control plane")),
        _ => CheckResult::Warning(
            format!("{seconds} s {direction} the control plane"),
            "set the clock by NTP: tokens are refreshed by time".into(),
        ),
    }
}

async fn check_signing_keys(api: &Api) -> CheckResult {
    match api.key_set().await {
        Ok(set) => match set["keys"].as_array().map(Vec::len) {
            None | Some(0) => ApiError::Unreadable("/.well-known/jwks.json".into()).into(),
            Some(count) => CheckResult::Ok(format!("{count} published")),
        },
        Err(error) => error.into(),
    }
}

/// Checks the agent of the profile. With `--login`, logs in; otherwise checks its key, and its status if a credential may read it.
async fn check_agent(context: &Context, api: &Api, args: &DoctorArgs) -> CheckResult {
    let profile = &context.profile;
    let Some(agent) = &profile.agent else {
        return CheckResult::Skipped("the profile has no agent: `countersign agent register` registers one");
    };
    if args.login {
        return match log_in_and_out(context, api, agent).await {
            Ok(()) => CheckResult::Ok(format!("{agent} can log in")),
            Err(error) => error.with_next_for("AGENT_NOT_FOUND", || UNKNOWN_AGENT_AT_LOGIN.to_owned()).into(),
        };
    }
    let key_state = match (&profile.signer, &profile.key) {
        (Some(_), _) => None,
        (None, None) => return CheckResult::Skipped("the profile has no key of the agent"),
        (None, Some(path)) => match check_key_file(context, path) {
            Ok(state) => Some(state),
            Err(error) => return error.into(),
        },
    };
    match agent_status(context, api, args, agent).await.as_deref() {
        Some("active") => CheckResult::Ok(format!("{agent} is active")),
        Some(status @ ("suspended" | "revoked")) => {
            CliError::denied(format!("{agent} is {status}"), format!("agent_{status}")).into()
        }
        _ => match key_state {
            None => CheckResult::Skipped("an external signer holds its key: `countersign doctor --login` tests it"),
            Some(state) => CheckResult::Ok(format!("{agent}: {state}; --login tests whether the agent can log in")),
        },
    }
}

/// Checks the agent's key file. Returns what we know of the key: without a hash in the profile, we cannot compare it.
fn check_key_file(context: &Context, path: &Path) -> Result<&'static str, CliError> {
    context.private_key(path)?;
    let Some(registered) = &context.profile.public_key_hash else { return Ok("the key file can be read") };
    if public_key_hash(path).as_ref() == Some(registered) {
        return Ok("the key is the one that was registered");
    }
    let next = "pass the right one with --key, or register this one: countersign agent register --help";
    Err(CliError::failed(format!("the key in {} is not the registered one", path.display())).with_next(next))
}

/// The status of the agent, if the API key or the human user may read it. Ignores errors: other checks report them.
async fn agent_status(context: &Context, api: &Api, args: &DoctorArgs, agent: &str) -> Option<String> {
    let service = context.service(&args.manager.service).ok()?;
    let human = args.manager.human.explicit().ok()?.cloned().or_else(|| unexpired_token(context, &args.manager.server));
    let credentials = [args.manager.key.optional().ok().flatten().cloned(), human];
    for credential in credentials.into_iter().flatten() {
        if let Ok(record) = api.service(&service, &credential).read_agent(agent).await {
            return record["status"].as_str().map(str::to_owned);
        }
    }
    None
}

async fn log_in_and_out(context: &Context, api: &Api, agent: &str) -> Result<(), CliError> {
    let signer = SignerArgs { key: None, signer: None }.open(context)?;
    let tokens = api.login(&signer, agent, None).await?;
    api.revoke_token(&tokens.refresh_token).await?;
    Ok(())
}

async fn check_service_key(context: &Context, api: &Api, args: &DoctorArgs) -> CheckResult {
    let key = match args.manager.key.optional() {
        Ok(None) => return CheckResult::Skipped("COUNTERSIGN_SERVICE_KEY is not set"),
        Ok(Some(key)) => key,
        Err(error) => return error.into(),
    };
    let result: Result<_, CliError> = async {
        let status = api.status(key).await?;
        let Some(service) = args.manager.service.service.clone().or_else(|| context.profile.service.clone()) else {
            return Ok(format!("valid, of scope full; the control plane is {}", status.version));
        };
        api.service(&service_id(service.clone())?, key).list_roles().await?;
        Ok(format!("valid for {service}; the control plane is {}", status.version))
    }
    .await;
    match result {
        Ok(text) => CheckResult::Ok(text),
        Err(error) if error.has_reason("scope_insufficient") => {
            let next = "use it for a sidecar; the commands need a key of scope full";
            CheckResult::Warning("of scope sync".into(), next.into())
        }
        Err(error) => error.into(),
    }
}

async fn check_human_token(context: &Context, api: &Api, args: &DoctorArgs) -> CheckResult {
    let token = match args.manager.human.explicit() {
        Ok(Some(token)) => token.clone(),
        Ok(None) => match stored_login(context, &args.manager.server) {
            Ok(None) => return CheckResult::Skipped("COUNTERSIGN_HUMAN_TOKEN is not set: `countersign login` logs in"),
            Ok(Some(login)) if clock::now() < login.tokens.claims.expires_at() => login.tokens.token,
            // `doctor` changes nothing, so it must not use up the refresh token.
            Ok(Some(login)) if login.tokens.refresh_token.is_some() => {
                return CheckResult::Ok("expired; the next command refreshes it".into());
            }
            Ok(Some(_)) => return CliError::denied("the login has expired", "human_token_expired").into(),
            Err(error) => return error.into(),
        },
        Err(error) => return error.into(),
    };
    match api.human(&token).list_services(&PageStart::FIRST).await {
        Ok(_) => CheckResult::Ok("valid".into()),
        Err(error) => error.into(),
    }
}

/// Returns all results as data, the next steps as the note, and the first failure as the error of the command.
fn report(messages: &Messages, checks: Vec<Check>) -> CommandOutput {
    let mut rows = Vec::new();
    let mut values = Vec::new();
    let mut note = Vec::new();
    let mut failure = None;
    for Check { name: check, result } in checks {
        let (status, message, next) = match &result {
            CheckResult::Ok(text) => ("ok", text.clone(), None),
            CheckResult::Warning(text, next) => ("warning", text.clone(), Some(next.clone())),
            CheckResult::Skipped(text) => ("-", (*text).to_owned(), None),
            CheckResult::Failed(error) => ("failed", error.to_string(), next_step(error).map(String::from)),
        };
        let next = next.map(|next| messages.hint(&next));
        // The first failure becomes the error of the command, which prints its own next step.
        if failure.is_some() || !matches!(result, CheckResult::Failed(_)) {
            note.extend(next.as_ref().map(|next| format!("Next: for the {check}, {next}")));
        }
        values.push(json!({ "check": check, "status": status, "message": message, "next": next }));
        rows.push([status.to_owned(), check.to_owned(), message]);
        if let (CheckResult::Failed(error), None) = (result, &failure) {
            failure = Some(error);
        }
    }
    let rows = Rows::of(&rows).fixed("STATUS", |[status, _, _]| status.clone());
    let rows = rows.fixed("CHECK", |[_, check, _]| check.clone()).fixed("MESSAGE", |[_, _, message]| message.clone());
    let table = rows.table.without_header();
    CommandOutput::table(table, Value::Array(values)).with_note(note.join("\n")).with_error(failure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_clock_states_the_direction_and_warns_beyond_the_leeway() {
        let health = |seconds: i64| {
            let time =
                Timestamp::from_microsecond(clock::now().micros()).unwrap() + jiff::SignedDuration::from_secs(seconds);
            Health { status: "healthy".into(), timestamp: time.to_string(), checks: std::collections::BTreeMap::new() }
        };
        let result = |seconds| match check_clock(&health(seconds)) {
            CheckResult::Ok(text) => ("ok", text),
            CheckResult::Warning(text, _) => ("warning", text),
            CheckResult::Skipped(_) | CheckResult::Failed(_) => ("failed", String::new()),
        };
        assert_eq!(result(0), ("ok", "in sync with the control plane".into()));
        assert_eq!(result(20).0, "ok");
        assert!(result(100).0 == "warning" && result(100).1.contains("s behind"));
        assert!(result(-3600).0 == "warning" && result(-3600).1.contains("ahead of"));
        let malformed = Health { timestamp: "soon".into(), ..health(0) };
        assert!(matches!(check_clock(&malformed), CheckResult::Failed(_)));
    }
}
