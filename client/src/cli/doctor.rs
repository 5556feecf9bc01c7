//! `countersign doctor`: everything that commands rest on, looked at once, with the next step where something is
//! wrong. It leaves nothing behind: the login by which it proves the agent's key is ended at once.

use super::{
    Failure, Said,
    context::{Context, Server, human_token, private_key, service_id, service_key},
    said::table,
};
use clap::Args;
use countersign_client::{Api, ApiError, PrivateKey, api::Health, clock};
use jiff::Timestamp;
use secrecy::SecretString;
use serde_json::{Value, json};

/// Further apart than this, in seconds, clocks make tokens look expired, or not valid yet.
const LEEWAY: i64 = 30;

#[derive(Args)]
pub struct Doctor {
    #[command(flatten)]
    server: Server,
    /// The service whose key is looked at; left out: the one made last with this profile
    #[arg(long, env = "COUNTERSIGN_SERVICE_ID")]
    service: Option<String>,
    /// Its API key; better in the environment, since command lines are seen by all
    #[arg(long, env = "COUNTERSIGN_SERVICE_KEY", hide_env_values = true, value_name = "KEY")]
    service_key: Option<SecretString>,
    /// A person's token; better in the environment
    #[arg(long, env = "COUNTERSIGN_HUMAN_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    human_token: Option<SecretString>,
}

/// What was found out about something.
enum Found {
    Good(String),
    /// Good enough for now.
    Doubtful(String, &'static str),
    /// There is nothing to be looked at.
    Nothing(&'static str),
    Bad(Failure),
}

type Finding = (&'static str, Found);

/// Looks at everything.
pub async fn run(context: &Context, asked: Doctor) -> Result<Said, Failure> {
    let mut findings = vec![("profile", profile(context))];
    match reach(context, &asked.server).await {
        Err(failure) => findings.push(("control plane", Found::Bad(failure))),
        Ok((api, health)) => {
            findings.push(("control plane", feeling(&health)));
            findings.push(("clock", clocks(&health)));
            findings.push(("signing keys", published(&api).await));
            findings.push(("agent", agent(context, &api).await));
            findings.push(("service key", of_service(context, &api, &asked).await));
            findings.push(("human token", of_person(&api, asked.human_token.as_ref()).await));
        }
    }
    Ok(report(findings))
}

fn profile(context: &Context) -> Found {
    let path = context.profiles.path(&context.name, "toml").map(|path| path.display().to_string());
    match context.check_writable().and(path) {
        Ok(path) => Found::Good(path),
        Err(error) => Found::Bad(error.into()),
    }
}

async fn reach(context: &Context, server: &Server) -> Result<(Api, Health), Failure> {
    let api = context.api(server)?;
    let health = api.health().await?;
    Ok((api, health))
}

fn feeling(health: &Health) -> Found {
    let ailing =
        health.checks.iter().filter(|(_, check)| *check != "up").map(|(part, check)| format!("{part} {check}"));
    let ailing: Vec<_> = ailing.collect();
    let text = [vec![health.status.clone()], ailing].concat().join(", ");
    match health.status.as_str() {
        "healthy" => Found::Good(text),
        "degraded" => Found::Doubtful(text, "its operator looks at its log: some of it does not work"),
        _ => Found::Bad(Failure::Failed(format!("it is {text}\nNext: its operator looks at its log"))),
    }
}

fn clocks(health: &Health) -> Found {
    let Ok(there) = health.timestamp.parse::<Timestamp>() else {
        return Found::Bad(ApiError::Unreadable("/health".into()).into());
    };
    let behind = there.as_second() - clock::now().seconds();
    let seconds = behind.abs();
    let which = if behind > 0 { "behind" } else { "ahead of" };
    match seconds {
        0..=2 => Found::Good("together with the control plane's".into()),
        3..=LEEWAY => Found::Good(format!("{seconds} s {which} the control plane's")),
        _ => Found::Doubtful(
            format!("{seconds} s {which} the control plane's"),
            "set it by NTP: tokens are used and replaced by the time",
        ),
    }
}

async fn published(api: &Api) -> Found {
    match api.key_set().await {
        Ok(set) => match set["keys"].as_array().map(Vec::len) {
            None | Some(0) => Found::Bad(ApiError::Unreadable("/.well-known/jwks.json".into()).into()),
            Some(count) => Found::Good(format!("{count} published")),
        },
        Err(error) => Found::Bad(error.into()),
    }
}

/// The whole way: a challenge, its answer, a token; and the login's end.
async fn agent(context: &Context, api: &Api) -> Found {
    let profile = &context.profile;
    let Some(agent) = &profile.agent else {
        return Found::Nothing("none in this profile: `countersign agent register` makes one");
    };
    if profile.signer.is_some() {
        return Found::Nothing("its key is held by a signer, which is not troubled: countersign agent login");
    }
    let Some(path) = &profile.key else { return Found::Nothing("its key is not in this profile") };
    match private_key(path) {
        Ok(key) => match log_in_and_out(api, &key, agent).await {
            Ok(()) => Found::Good(format!("{agent} can log in")),
            Err(error) => Found::Bad(error.into()),
        },
        Err(failure) => Found::Bad(failure),
    }
}

async fn log_in_and_out(api: &Api, key: &PrivateKey, agent: &str) -> Result<(), ApiError> {
    let tokens = api.login(key, agent, None).await?;
    api.revoke_token(&tokens.refresh_token).await
}

async fn of_service(context: &Context, api: &Api, asked: &Doctor) -> Found {
    let Some(key) = &asked.service_key else { return Found::Nothing("COUNTERSIGN_SERVICE_KEY is not set") };
    let looked_at = async {
        let key = service_key(key)?;
        let status = api.status(key).await?;
        let Some(service) = asked.service.clone().or_else(|| context.profile.service.clone()) else {
            return Ok(format!("good, of scope full; the control plane is {}", status.version));
        };
        api.list_roles(key, &service_id(service.clone())?).await?;
        Ok(format!("good for {service}; the control plane is {}", status.version))
    };
    match looked_at.await {
        Ok(text) => Found::Good(text),
        Err(Failure::Api(ApiError::Refused { reason: Some(reason), .. })) if reason == "scope_insufficient" => {
            Found::Doubtful("of scope sync".into(), "it is for a sidecar; here, one of scope full is needed")
        }
        Err(failure) => Found::Bad(failure),
    }
}

async fn of_person(api: &Api, token: Option<&SecretString>) -> Found {
    let Some(token) = token else { return Found::Nothing("COUNTERSIGN_HUMAN_TOKEN is not set") };
    let looked_at = async { Ok::<_, Failure>(api.list_services(human_token(token)?, 0).await?) };
    match looked_at.await {
        Ok(_) => Found::Good("good".into()),
        Err(failure) => Found::Bad(failure),
    }
}

/// All of it as data; advice beside it; the first thing that is bad as the command's failure.
fn report(findings: Vec<Finding>) -> Said {
    let (mut rows, mut values, mut advice, mut failure) = (Vec::new(), Vec::new(), Vec::new(), None);
    for (about, found) in findings {
        let (mark, text, next) = match &found {
            Found::Good(text) => ("ok", text.clone(), Value::Null),
            Found::Doubtful(text, next) => ("warning", text.clone(), json!(next)),
            Found::Nothing(text) => ("-", (*text).to_owned(), Value::Null),
            Found::Bad(failure) => {
                let error = &failure.value()["error"];
                ("failed", error["message"].as_str().unwrap_or_default().to_owned(), error["next"].clone())
            }
        };
        // That of the first failure is said with it.
        if failure.is_some() || !matches!(found, Found::Bad(_)) {
            advice.extend(next.as_str().map(|next| format!("Next, for the {about}: {next}")));
        }
        values.push(json!({ "about": about, "found": mark, "text": text, "next": next }));
        rows.push([mark.to_owned(), about.to_owned(), text]);
        if let (Found::Bad(bad), None) = (found, &failure) {
            failure = Some(bad);
        }
    }
    Said::new(table(&rows), Value::Array(values)).noting(advice.join("\n")).failing(failure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_that_are_apart_are_told_with_the_side_that_is_late() {
        let health = |seconds: i64| {
            let at =
                Timestamp::from_microsecond(clock::now().micros()).unwrap() + jiff::SignedDuration::from_secs(seconds);
            Health { status: "healthy".into(), timestamp: at.to_string(), checks: std::collections::BTreeMap::new() }
        };
        let told = |seconds| match clocks(&health(seconds)) {
            Found::Good(text) => ("good", text),
            Found::Doubtful(text, _) => ("doubtful", text),
            Found::Nothing(_) | Found::Bad(_) => ("bad", String::new()),
        };
        assert_eq!(told(0), ("good", "together with the control plane's".into()));
        assert_eq!(told(20).0, "good");
        assert!(told(100).0 == "doubtful" && told(100).1.contains("s behind"));
        assert!(told(-3600).0 == "doubtful" && told(-3600).1.contains("ahead of"));
        let nonsense = Health { timestamp: "soon".into(), ..health(0) };
        assert!(matches!(clocks(&nonsense), Found::Bad(_)));
    }
}
