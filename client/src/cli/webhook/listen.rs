//! `countersign webhook listen`: events are received on this machine, verified and printed.

use super::{
    Desk, Whose,
    change::no_room,
    receiver::{Arrival, Received, Receiver},
};
use crate::cli::{
    Failure, Output, Said,
    context::{Context, missing, read},
    parse::variable,
    said::plain,
};
use clap::Args;
use countersign_client::{
    ApiError, Verifier, WebhookSecret,
    api::{NewWebhook, WebhookChange},
};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use std::{
    io::{self, Write},
    path::PathBuf,
};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Where secrets may stand besides a file.
const VARIABLE: &str = "COUNTERSIGN_WEBHOOK_SECRET";

#[derive(Args)]
pub struct Listen {
    #[command(flatten)]
    whose: Whose,
    /// The port on 127.0.0.1; left out: any that is free
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    port: u16,
    /// A file with the secret of a target that leads here; left out: `COUNTERSIGN_WEBHOOK_SECRET`, else a target is
    /// made for as long as this runs
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// Make the target for events of these kinds only, separated by commas
    #[arg(long, value_name = "KINDS", value_delimiter = ',')]
    events: Option<Vec<String>>,
    /// End after so many
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

/// What was printed so far.
#[derive(Default)]
struct Tally {
    all: u64,
    doubtful: u64,
}

/// What ends it, other than enough events.
struct Stop([Signal; 3]);

/// Receives until there is enough, or somebody stops it.
pub async fn listen(context: &Context, asked: Listen, output: Output) -> Result<Said, Failure> {
    let Listen { whose, port, secret_file, events, count } = asked;
    let mut stop = Stop::new()?;
    let Some(verifier) = verifier(secret_file)? else {
        return with_target(&whose.desk(context)?, events, port, count, &mut stop, output).await;
    };
    if events.is_some() {
        let text = "with a secret no target is made, so --events says nothing";
        let next = "leave it out, or change the target: countersign webhook change ID --events KINDS";
        return Err(Failure::Usage(format!("{text}\nNext: {next}")));
    }
    let receiver = Receiver::bind(port).await?;
    announce(&receiver.url(), None, output)?;
    let ended = print_all(receiver.open(verifier), count, &mut stop, output).await;
    Ok(Said::default().failing(ended.err()))
}

/// Believes what the given secrets sign, if any are given.
fn verifier(file: Option<PathBuf>) -> Result<Option<Verifier>, Failure> {
    let (named, text) = match file {
        Some(path) => {
            let bytes = read("--secret-file", &path)?;
            let text = String::from_utf8(bytes).map_err(|_| Failure::file("--secret-file", &path, "it is no text"))?;
            ("--secret-file", SecretString::from(text))
        }
        None => match variable(VARIABLE) {
            Some(text) => (VARIABLE, SecretString::from(text)),
            None => return Ok(None),
        },
    };
    let mut all: Option<Verifier> = None;
    for word in text.expose_secret().split_whitespace() {
        let secret: WebhookSecret = word.parse().map_err(|error| {
            let next = "`countersign webhook create` shows the secret of a target once, rotate-secret another one";
            Failure::Usage(format!("{named}: {error}\nNext: {next}"))
        })?;
        all = Some(match all {
            None => Verifier::new(secret),
            Some(others) => others.or(secret),
        });
    }
    all.map(Some).ok_or_else(|| {
        missing("which secret", "a file that holds one, such as `countersign webhook create --out` makes")
    })
}

/// Makes a target that leads here, and deletes it at the end, whatever that is.
async fn with_target(
    desk: &Desk<'_>,
    events: Option<Vec<String>>,
    port: u16,
    count: Option<u64>,
    stop: &mut Stop,
    output: Output,
) -> Result<Said, Failure> {
    let receiver = Receiver::bind(port).await?;
    let (url, description) = (Some(receiver.url()), Some("countersign webhook listen".to_owned()));
    let wanted = WebhookChange { url, events, description, status: None };
    let made = desk.api.create_webhook(desk.manager, &desk.targets, &wanted).await.map_err(not_here)?;
    let NewWebhook { webhook, secret } = made;
    let id = webhook.webhook_id;
    let ended = async {
        // What the control plane makes is a secret.
        let secret = secret.expose_secret().parse().map_err(|_| ApiError::Unreadable(receiver.url()))?;
        announce(&receiver.url(), Some(&id), output)?;
        print_all(receiver.open(Verifier::new(secret)), count, stop, output).await
    };
    let ended = ended.await;
    let deleted = tokio::select! {
        deleted = desk.api.delete_webhook(desk.manager, &desk.targets, &id) => deleted.map_err(|error| error.to_string()),
        () = stop.asked() => Err("it was stopped".to_owned()),
    };
    let left = deleted.err().map(|error| {
        let next = format!("Next: countersign webhook delete{} {id}", desk.flag());
        Failure::Failed(format!("the target {id} is still there: {error}\n{next}"))
    });
    Ok(Said::default().failing(left.or(ended.err())))
}

/// The control plane does not deliver to this machine, or has no room for another target.
fn not_here(error: ApiError) -> Failure {
    let next = "a control plane delivers to this machine if it runs here with --dev. For another: countersign webhook \
        create with a public URL that leads here, then listen with its secret";
    match &error {
        ApiError::Refused { status: 400, message, .. } if message.contains("`url`") => {
            Failure::Advised { error, next: next.to_owned() }
        }
        _ => no_room(error),
    }
}

/// Says where it listens, now that it does.
fn announce(url: &str, target: Option<&str>, output: Output) -> Result<(), Failure> {
    match output {
        Output::Json => print(&json!({ "listening": url, "webhookId": target }).to_string()).map(drop),
        Output::Text => {
            let target = target.map(|id| format!(" as {id}, which is deleted at the end")).unwrap_or_default();
            let _closed = writeln!(io::stderr(), "Listening on {url}{target}. Ctrl-C ends it.");
            Ok(())
        }
    }
}

/// Prints what arrives, until there is enough, or somebody stops it; an error if something was not believed.
async fn print_all(mut received: Received, count: Option<u64>, stop: &mut Stop, output: Output) -> Result<(), Failure> {
    let mut tally = Tally::default();
    let mut printed = Ok(true);
    while matches!(printed, Ok(true)) && count.is_none_or(|count| tally.all < count) {
        let arrival = tokio::select! {
            arrival = received.next() => arrival,
            () = stop.asked() => None,
        };
        let Some(arrival) = arrival else { break };
        tally.all += 1;
        tally.doubtful += u64::from(arrival.problem.is_some());
        printed = print(&line(&arrival, output));
        if matches!(printed, Ok(true)) {
            arrival.told();
        }
    }
    received.close().await;
    printed?;
    match tally {
        Tally { doubtful: 0, .. } => Ok(()),
        Tally { all, doubtful } => {
            let next = "does the secret belong to the target that leads here? `countersign webhook rotate-secret` makes another";
            Err(Failure::Failed(format!("{doubtful} of {all} were not believed\nNext: {next}")))
        }
    }
}

/// What arrived, in a line.
fn line(arrival: &Arrival, output: Output) -> String {
    let body = &arrival.body;
    let signature = if arrival.is_signed() { "good" } else { "bad" };
    let problem = arrival.problem.map(|problem| problem.to_string());
    let known = |name: &str| body.get(name).cloned().unwrap_or_default();
    if output == Output::Json {
        let value = json!({
            "eventId": arrival.id, "signature": signature, "problem": problem,
            "event": known("event"), "timestamp": known("timestamp"), "data": known("data"),
        });
        return value.to_string();
    }
    let kind = known("event");
    let (kind, id) = (kind.as_str().unwrap_or("-"), arrival.id.as_deref().unwrap_or("-"));
    // Of what nobody signed, no more is shown than what is wrong with it.
    let rest = problem.unwrap_or_else(|| data(&known("data")));
    plain(&format!("{signature:4}  {kind:27}  {id:30}  {rest}"))
}

/// The fields of an event, for people: what there is.
fn data(data: &Value) -> String {
    let fields = data.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    fields.map(|(name, value)| format!("{name}={}", word(value))).collect::<Vec<_>>().join(" ")
}

fn word(value: &Value) -> String {
    match value {
        Value::String(text) if !text.contains(char::is_whitespace) => text.clone(),
        other => other.to_string(),
    }
}

/// Prints a line at once; says whether anybody still reads.
fn print(line: &str) -> Result<bool, Failure> {
    let mut out = io::stdout();
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        // A reader that has gone away is no fault of the command's.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::Failed(format!("standard output: {error}"))),
    }
}

impl Stop {
    /// From now on these signals do not end the process by themselves.
    fn new() -> Result<Self, Failure> {
        let each = |kind| signal(kind).map_err(|error| Failure::Failed(format!("signals: {error}")));
        let [interrupt, terminate, hangup] =
            [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(each);
        Ok(Self([interrupt?, terminate?, hangup?]))
    }

    async fn asked(&mut self) {
        let Self([interrupt, terminate, hangup]) = self;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advice(status: u16, code: &str, message: &str) -> String {
        let (code, message) = (code.to_owned(), message.to_owned());
        let failure = not_here(ApiError::Refused { status, code, message, reason: None, retry_after: None });
        failure.next().map(String::from).unwrap_or_default()
    }

    #[test]
    fn who_cannot_be_delivered_to_here_is_told_what_can_be_done() {
        assert!(advice(400, "VALIDATION_ERROR", "`url` must have a public address").contains("--dev"));
        assert!(!advice(400, "VALIDATION_ERROR", "`events` must be kinds").contains("--dev"));
        assert!(advice(409, "CONFLICT", "There are ten").contains("webhook delete"));
        assert!(advice(403, "FORBIDDEN", "No").is_empty());
    }

    #[test]
    fn the_fields_of_an_event_are_words() {
        let fields = json!({ "roleName": "two words", "score": 4.5, "expiresAt": null });
        assert_eq!(data(&fields), "roleName=\"two words\" score=4.5");
        assert_eq!((data(&Value::Null), data(&json!("text"))), (String::new(), String::new()));
    }
}
