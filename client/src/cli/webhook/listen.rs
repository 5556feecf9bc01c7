//! `countersign webhook listen`: receives events on this machine, verifies their signatures and prints them.

use super::{
    change::with_limit_hint,
    receiver::{ReceivedRequest, Receiver},
    scope::{ScopeArgs, scope_option},
};
use crate::cli::{
    complete,
    context::read_file,
    environment::variable,
    loopback::BoundServer,
    prelude::{CliError, CommandOutput, Context, OutputFormat},
};
use clap::{Args, ValueHint};
use clap_complete::ArgValueCompleter;
use countersign_client::{
    ApiError, Verifier,
    api::{NewWebhook, WebhookApi, WebhookChange, WebhookScope, escape_unprintable, replace_unprintable},
    webhook::SecretError,
};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use std::{
    io::{self, Write},
    path::PathBuf,
};
use tokio::signal::unix::{Signal, SignalKind, signal};

const SECRET_VARIABLE: &str = "COUNTERSIGN_WEBHOOK_SECRET";

#[derive(Args)]
pub struct ListenArgs {
    #[command(flatten)]
    scope: ScopeArgs,
    /// The port on 127.0.0.1 [default: a free one]
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    port: u16,
    /// A file with the secret of a webhook whose URL leads here [default: `COUNTERSIGN_WEBHOOK_SECRET`, or create a webhook]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    secret_file: Option<PathBuf>,
    /// The event kinds of the webhook that is created, separated by commas
    #[arg(long, value_name = "KINDS", value_delimiter = ',', add = ArgValueCompleter::new(complete::event_kinds))]
    events: Option<Vec<String>>,
    /// End after this number of events
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

/// The signals that end the command.
struct StopSignals([Signal; 3]);

/// Receives events until `--count` is reached or a signal arrives.
pub async fn listen(context: &Context, args: ListenArgs) -> Result<CommandOutput, CliError> {
    let ListenArgs { scope, port, secret_file, events, count } = args;
    let mut stop = StopSignals::new()?;
    let Some(verifier) = verifier(secret_file)? else {
        return with_temporary_webhook(context, &scope.api(context).await?, events, port, count, &mut stop).await;
    };
    if events.is_some() {
        let text = "--events has no effect with a secret, because no webhook is created";
        let next = "leave it out, or change the webhook: countersign webhook change ID --events KINDS";
        return Err(CliError::usage(text).with_next(next));
    }
    let server = bind(port).await?;
    announce(context, &url(&server), None)?;
    let result = print_requests(Receiver::start(server, verifier), count, &mut stop, context.format()).await;
    Ok(CommandOutput::default().with_error(result.err()))
}

/// Binds a port of loopback; 0 is any free port.
async fn bind(port: u16) -> Result<BoundServer, CliError> {
    BoundServer::bind(port).await.map_err(|error| {
        CliError::failed(format!("port {port}: {error}")).with_next("pass another --port, or none for a free one")
    })
}

/// The URL at which the server receives events.
fn url(server: &BoundServer) -> String {
    format!("http://127.0.0.1:{}/", server.port())
}

/// A verifier with the secrets in the file, or else in the environment; `None` if neither is set.
fn verifier(file: Option<PathBuf>) -> Result<Option<Verifier>, CliError> {
    let (source, text) = match file {
        Some(path) => {
            let bytes = read_file("--secret-file", &path)?;
            let text =
                String::from_utf8(bytes).map_err(|_| CliError::file("--secret-file", &path, "it is not text"))?;
            ("--secret-file", SecretString::from(text))
        }
        None => match variable(SECRET_VARIABLE) {
            Some(text) => (SECRET_VARIABLE, SecretString::from(text)),
            None => return Ok(None),
        },
    };
    let parse = |word: &str| {
        let next = "`countersign webhook create` prints the secret of a new webhook";
        word.parse().map_err(|error: SecretError| CliError::usage(format!("{source}: {error}")).with_next(next))
    };
    let next = "pass a file that contains one, as `countersign webhook create --out` writes it";
    let mut words = text.expose_secret().split_whitespace();
    let first = words.next().ok_or_else(|| CliError::missing("the secret", next))?;
    let verifier = Verifier::new(parse(first)?);
    words.try_fold(verifier, |verifier, word| Ok(verifier.or(parse(word)?))).map(Some)
}

/// Creates a webhook that delivers to this machine. Deletes the webhook at the end, even after an error.
async fn with_temporary_webhook(
    context: &Context,
    webhooks: &WebhookApi,
    events: Option<Vec<String>>,
    port: u16,
    count: Option<u64>,
    stop: &mut StopSignals,
) -> Result<CommandOutput, CliError> {
    let server = bind(port).await?;
    let url = url(&server);
    let description = Some("countersign webhook listen".to_owned());
    let request = WebhookChange { url: Some(url.clone()), events, description, managed_by: None, status: None };
    let created = webhooks.create(&request).await;
    let NewWebhook { webhook, secret } = created.map_err(|error| with_loopback_hint(error, &webhooks.scope))?;
    let id = webhook.webhook_id;
    let result = async {
        let secret = secret.expose_secret().parse().map_err(|_| ApiError::Unreadable(url.clone()))?;
        announce(context, &url, Some(&id))?;
        print_requests(Receiver::start(server, Verifier::new(secret)), count, stop, context.format()).await
    };
    let result = result.await;
    let deleted = tokio::select! {
        deleted = webhooks.delete(&id) => {
            deleted.map_err(|error| error.to_string())
        }
        () = stop.received() => Err("the command was stopped".to_owned()),
    };
    let not_deleted = deleted.err().map(|error| {
        let next = format!("countersign webhook delete{} {id}", scope_option(&webhooks.scope));
        CliError::failed(format!("the webhook {id} was not deleted: {error}")).with_next(next)
    });
    Ok(CommandOutput::default().with_error(not_deleted.or(result.err())))
}

/// Adds a hint if the control plane does not deliver to this machine, or if there are too many webhooks.
fn with_loopback_hint(error: ApiError, scope: &WebhookScope) -> CliError {
    let hint = "a control plane on this machine delivers to it with --dev. For another, run countersign webhook create \
        with a public URL that leads to this machine, then listen with its secret";
    match &error {
        ApiError::Refused { status: 400, message, .. } if message.contains("`url`") => {
            CliError::from(error).with_next(hint)
        }
        _ => with_limit_hint(error, scope),
    }
}

/// Announces the URL. Its port is bound already, so a reader of the line can send requests at once.
fn announce(context: &Context, url: &str, webhook: Option<&str>) -> Result<(), CliError> {
    match context.format() {
        OutputFormat::Json => print_line(&json!({ "listening": url, "webhookId": webhook }).to_string()).map(drop),
        OutputFormat::Text => {
            let webhook = webhook.map(|id| format!(" as {id}, which is deleted at the end")).unwrap_or_default();
            context.messages.note(&format!("Listening on {url}{webhook}. Ctrl-C ends it."));
            Ok(())
        }
    }
}

/// Prints requests until `count` is reached, a signal arrives, or standard output is closed. Fails if a request was invalid.
async fn print_requests(
    mut receiver: Receiver,
    count: Option<u64>,
    stop: &mut StopSignals,
    format: OutputFormat,
) -> Result<(), CliError> {
    let mut all = 0;
    let mut invalid = 0;
    let mut printed = Ok(true);
    while matches!(printed, Ok(true)) && count.is_none_or(|count| all < count) {
        let request = tokio::select! {
            request = receiver.next() => request,
            () = stop.received() => None,
        };
        let Some(request) = request else { break };
        all += 1;
        invalid += u64::from(request.problem.is_some());
        printed = print_line(&request_line(&request, format));
        if matches!(printed, Ok(true)) {
            request.acknowledge();
        }
    }
    receiver.close().await;
    printed?;
    if invalid == 0 {
        return Ok(());
    }
    let next = "is it the secret of the webhook that sends to this URL?";
    Err(CliError::failed(format!("{invalid} of {all} requests were invalid")).with_next(next))
}

fn request_line(request: &ReceivedRequest, format: OutputFormat) -> String {
    let body = &request.body;
    let signature = if request.is_signed() { "good" } else { "bad" };
    let problem = request.problem.map(|problem| problem.to_string());
    let field = |name: &str| body.get(name).cloned().unwrap_or_default();
    if format == OutputFormat::Json {
        // The data of an event without a valid signature is not shown: somebody else may have sent it.
        let data = if request.is_signed() { field("data") } else { Value::Null };
        let value = json!({
            "eventId": request.id, "signature": signature, "problem": problem,
            "event": field("event"), "timestamp": field("timestamp"), "data": data,
        });
        return escape_unprintable(&value.to_string());
    }
    let kind = field("event");
    let kind = kind.as_str().unwrap_or("-");
    let id = request.id.as_deref().unwrap_or("-");
    // An event without a valid signature has a problem, which is shown in place of its data.
    let rest = problem.unwrap_or_else(|| data_text(&field("data")));
    replace_unprintable(&format!("{signature:4}  {kind:27}  {id:30}  {rest}"))
}

/// The fields of an event that are not null.
fn data_text(data: &Value) -> String {
    let fields = data.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    fields.map(|(name, value)| format!("{name}={}", field_text(value))).collect::<Vec<_>>().join(" ")
}

/// Formats a text that contains no spaces without quotes, and every other value as JSON.
fn field_text(value: &Value) -> String {
    match value {
        Value::String(text) if !text.contains(char::is_whitespace) => text.clone(),
        other => other.to_string(),
    }
}

/// Prints a line without delay. Returns `false` if the reader of standard output has closed the pipe, which is not an error.
fn print_line(line: &str) -> Result<bool, CliError> {
    let mut out = io::stdout();
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(CliError::failed(format!("standard output: {error}"))),
    }
}

impl StopSignals {
    /// Handles these signals, so that they let the command delete its webhook before it ends.
    fn new() -> Result<Self, CliError> {
        let handle = |kind| signal(kind).map_err(|error| CliError::failed(format!("signals: {error}")));
        let [interrupt, terminate, hangup] =
            [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(handle);
        Ok(Self([interrupt?, terminate?, hangup?]))
    }

    async fn received(&mut self) {
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
    use crate::cli::hints::next_step;
    use countersign_client::api::ErrorDetails;

    fn hint(status: u16, code: &str, message: &str) -> String {
        let code = code.to_owned();
        let message = message.to_owned();
        let details = Box::new(ErrorDetails::default());
        let error = ApiError::Refused { status, code, message, reason: None, details, retry_after: None };
        next_step(&with_loopback_hint(error, &WebhookScope::Deployment)).map(String::from).unwrap_or_default()
    }

    #[test]
    fn refused_webhooks_have_a_hint_by_cause() {
        assert!(hint(400, "VALIDATION_ERROR", "`url` must have a public address").contains("--dev"));
        assert!(!hint(400, "VALIDATION_ERROR", "`events` must be kinds").contains("--dev"));
        assert!(hint(409, "CONFLICT", "There are ten").contains("webhook list"));
        assert!(hint(403, "FORBIDDEN", "No").is_empty());
    }

    #[test]
    fn data_text_quotes_values_with_spaces_and_skips_null() {
        let fields = json!({ "roleName": "two words", "score": 4.5, "expiresAt": null });
        assert_eq!(data_text(&fields), "roleName=\"two words\" score=4.5");
        assert_eq!((data_text(&Value::Null), data_text(&json!("text"))), (String::new(), String::new()));
    }
}
