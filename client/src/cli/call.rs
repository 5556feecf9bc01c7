//! `countersign agent call`: one request to a service with the agent's token.

use super::{
    context::{authority_error, read_file},
    hints::{hint_for_tls_error, next_step},
    ids::redacted_argument,
    login::{LoginArgs, TokenPolicy, login},
    oauth::LoginChoice,
    prelude::{Cause, CliError, CommandOutput, Context},
};
use clap::{Args, ValueHint};
use countersign_client::api::{
    Exchange, Observer, http_client, innermost, is_loopback, redacted_url, replace_unprintable, requirement,
};
use reqwest::{
    Method, Url,
    header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue, LOCATION},
};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use std::{
    io::{IsTerminal, Read},
    os::unix::fs::MetadataExt,
    path::PathBuf,
};

/// The length of the longest usual HTTP methods. Anything longer may be a secret, so errors do not repeat it.
const LONGEST_METHOD: usize = 16;

/// Reasons for a refusal after which a new login may help.
const RESOLVED_BY_LOGIN: [&str; 4] = ["token_expired", "token_superseded", "token_revoked", "token_key_unknown"];

#[derive(Args)]
pub struct CallArgs {
    /// The URL of the service, at the proxy in front of it
    #[arg(value_name = "URL", value_hint = ValueHint::Url)]
    target: String,
    #[command(flatten)]
    login: LoginArgs,
    /// The HTTP method [default: GET, or POST with --data]
    #[arg(short = 'X', long)]
    method: Option<String>,
    /// A header, `Name: value`; can be repeated
    #[arg(short = 'H', long = "header", value_name = "HEADER")]
    headers: Vec<String>,
    /// The body; @FILE reads a file, @- reads standard input
    #[arg(short, long, value_name = "DATA")]
    data: Option<String>,
    /// PEM file with the certificate authorities to trust for the service, instead of those of the system
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    service_ca: Option<PathBuf>,
    /// Send the token over plain HTTP, even to other machines
    #[arg(long)]
    plain_http: bool,
}

struct Response {
    status: u16,
    headers: HeaderMap,
    body: Vec<u8>,
}

struct Request {
    url: Url,
    method: Method,
    headers: HeaderMap,
    body: Option<Vec<u8>>,
    http: reqwest::Client,
    observer: Option<Observer>,
    /// Whether `--service-ca` replaces the trusted CA certificates of the system.
    has_service_ca: bool,
}

/// Calls the service. If the service refuses a stored token, logs in and calls the service a second time.
pub async fn run(context: &Context, args: &CallArgs) -> Result<CommandOutput, CliError> {
    let request = Request::new(context, args)?;
    let mut result = login(context, &args.login, LoginChoice::OfProfile, TokenPolicy::Valid).await?;
    let mut response = request.send(&result.tokens.access_token).await?;
    if response.status == 401 && RESOLVED_BY_LOGIN.contains(&response.reason().as_str()) {
        result = login(context, &args.login, LoginChoice::OfProfile, TokenPolicy::NewLogin).await?;
        response = request.send(&result.tokens.access_token).await?;
    }
    result.warn_if_not_saved(context);
    let note = response.redirect_note().unwrap_or_default();
    Ok(output(response).with_note(note))
}

fn output(response: Response) -> CommandOutput {
    let error = error_for_status(response.status, &response.reason(), &response.requirement());
    let headers: serde_json::Map<_, _> = response
        .headers
        .iter()
        .map(|(name, value)| (name.to_string(), json!(String::from_utf8_lossy(value.as_bytes()))))
        .collect();
    let body =
        serde_json::from_slice(&response.body).unwrap_or_else(|_| json!(String::from_utf8_lossy(&response.body)));
    let json = json!({ "status": response.status, "headers": headers, "body": body });
    let body = ensure_trailing_newline(response.body, error.is_some());
    CommandOutput::raw(body).with_json(json).with_error(error)
}

/// Adds a line end to a body if other text follows it: the prompt of the shell on a terminal, or an error in the same file or pipe.
fn ensure_trailing_newline(mut body: Vec<u8>, error_follows: bool) -> Vec<u8> {
    let is_followed = std::io::stdout().is_terminal() || (error_follows && is_one_stream());
    if is_followed && body.last().is_some_and(|last| *last != b'\n') {
        body.push(b'\n');
    }
    body
}

/// Whether standard output and standard error are the same file or pipe.
fn is_one_stream() -> bool {
    let file = |path| std::fs::metadata(path).map(|data| (data.dev(), data.ino())).ok();
    let output = file("/dev/stdout");
    output.is_some() && output == file("/dev/stderr")
}

/// The error for a status of 400 or more, with the next step; `None` for other statuses.
fn error_for_status(status: u16, reason: &str, requirement: &str) -> Option<CliError> {
    let text = format!("{}{requirement}", format!("the service answered {status} {reason}").trim_end());
    let denied = matches!(status, 401 | 403);
    let error = if denied { CliError::denied(text, reason) } else { CliError::failed(text) };
    // If the reason is known, its next step is better than the one for the status.
    if denied && next_step(&error).is_some() {
        return Some(error);
    }
    let next = match status {
        ..=399 => return None,
        401 | 403 if reason.is_empty() => {
            "the response has no reason: is this the URL of the proxy? `countersign token verify` checks the token"
        }
        401 | 403 => "countersign token inspect",
        503 if !reason.is_empty() => {
            "the sidecar of the service cannot decide at the moment: try again; the log of countersign-ext-authz shows the cause"
        }
        501 => "the service does not support the method; is the URL right?",
        500.. => "try again; the log of the service shows the cause",
        _ => "are the path, the method and the data right?",
    };
    Some(error.with_next(next))
}

impl Response {
    /// A note about a redirect, which is not followed: the token is only for the service that the user named.
    fn redirect_note(&self) -> Option<String> {
        let location = self.headers.get(LOCATION).filter(|_| (300..400).contains(&self.status))?;
        let url = redacted_url(&String::from_utf8_lossy(location.as_bytes()));
        Some(format!("the service answered {} with a redirect to {url}, which was not followed", self.status))
    }

    /// The reason of a refusal, from the header or the body.
    fn reason(&self) -> String {
        if let Some(reason) = self.headers.get("x-agent-reason").and_then(|reason| reason.to_str().ok()) {
            return replace_unprintable(reason);
        }
        replace_unprintable(self.details()["reason"].as_str().unwrap_or_default())
    }

    /// What the service required and what the agent has, if the body states it.
    fn requirement(&self) -> String {
        self.details().as_object().map(requirement).unwrap_or_default()
    }

    fn details(&self) -> Value {
        let body: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        // An MCP service answers with an error of JSON-RPC, which has `data` instead of `details`.
        body["error"].get("details").or_else(|| body["error"].get("data")).cloned().unwrap_or_default()
    }
}

impl Request {
    fn new(context: &Context, args: &CallArgs) -> Result<Self, CliError> {
        let url = Url::parse(&args.target).ok().filter(Url::has_host);
        let url = url.ok_or_else(|| {
            let next = "begin it with https://, or with http:// for this machine";
            CliError::usage(format!("`{}` is not a URL", redacted_url(&args.target))).with_next(next)
        })?;
        if !matches!(url.scheme(), "https" | "http") {
            let text = format!("`{}` is neither https nor http", redacted_url(url.as_str()));
            return Err(CliError::usage(text).with_next("begin it with https://"));
        }
        if url.scheme() != "https" && !args.plain_http && !is_loopback(&url) {
            let text = "plain HTTP would expose the token on the network";
            let next = "use https://, or --plain-http if the network is trusted";
            return Err(CliError::usage(text).with_next(next));
        }
        let default = if args.data.is_some() { "POST" } else { "GET" };
        let method = args.method.as_deref().unwrap_or(default);
        let method = Method::from_bytes(method.as_bytes()).map_err(|_| {
            let text = format!("`{}` is not an HTTP method", redacted_argument(method, LONGEST_METHOD));
            CliError::usage(text).with_next("pass one such as -X PUT")
        })?;
        let configure = |http: reqwest::ClientBuilder| {
            let http = http.timeout(context.timeout);
            // Requests to this machine may use plain HTTP, so a proxy could read the token: we connect without one.
            if is_loopback(&url) { http.no_proxy() } else { http }
        };
        let http = match args.service_ca.as_deref() {
            Some(path) => http_client(Some(&read_file("--service-ca", path)?), configure)
                .map_err(|error| authority_error(error, "--service-ca", path))?,
            None => http_client(None, configure)?,
        };
        let body = args.data.as_deref().map(read_data).transpose()?;
        let observer = context.observer;
        let has_service_ca = args.service_ca.is_some();
        Ok(Self { url, method, headers: parse_headers(&args.headers)?, body, http, observer, has_service_ca })
    }

    async fn send(&self, token: &SecretString) -> Result<Response, CliError> {
        let mut request = self.http.request(self.method.clone(), self.url.clone()).headers(self.headers.clone());
        request = if self.headers.contains_key(AUTHORIZATION) {
            // The user's own `Authorization` header stays, and the agent's token goes into `X-Agent-Token`.
            request.header("x-agent-token", format!("Bearer {}", token.expose_secret()))
        } else {
            request.bearer_auth(token.expose_secret())
        };
        if let Some(body) = &self.body {
            request = request.body(body.clone());
        }
        let unreachable = |error| {
            let cause = innermost(&error);
            let trust = if self.has_service_ca {
                "no authority in the file of --service-ca signed the certificate of the service; is it the right file?"
            } else {
                "pass the authority that signed the certificate of the service, with --service-ca FILE"
            };
            let next = hint_for_tls_error(&cause, trust).unwrap_or("is the service running, and is the URL right?");
            let url = redacted_url(self.url.as_str());
            CliError::from(Cause::Unreachable(format!("cannot reach {url}: {cause}"))).with_next(next)
        };
        let request = request.build().map_err(unreachable)?;
        let response = Exchange::execute(&self.http, request, self.observer).await.map_err(unreachable)?;
        let status = response.status().as_u16();
        let headers = response.headers().clone();
        Ok(Response { status, headers, body: response.bytes().await.map_err(unreachable)?.to_vec() })
    }
}

fn read_data(argument: &str) -> Result<Vec<u8>, CliError> {
    match argument.strip_prefix('@') {
        None => Ok(argument.as_bytes().to_vec()),
        Some("-") => {
            let mut bytes = Vec::new();
            let read = std::io::stdin().read_to_end(&mut bytes);
            read.map(|_| bytes).map_err(|error| CliError::failed(format!("standard input: {error}")))
        }
        Some(path) => read_file("--data", path.as_ref()),
    }
}

fn parse_headers(lines: &[String]) -> Result<HeaderMap, CliError> {
    let mut headers = HeaderMap::new();
    for (line, position) in lines.iter().zip(1..) {
        let parsed = line.split_once(':').and_then(|(name, value)| {
            let name = HeaderName::from_bytes(name.trim().as_bytes()).ok()?;
            Some((name, HeaderValue::from_str(value.trim()).ok()?))
        });
        // Any part of the header line may be a secret, so the error does not repeat the line.
        let (name, value) = parsed.ok_or_else(|| {
            CliError::usage(format!("header {position} is malformed")).with_next("write -H 'Name: value', with a colon")
        })?;
        headers.append(name, value);
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_has_one_next_step_for_every_status() {
        for (status, reason, is_denied, text) in [
            (401, "", true, "the service answered 401"),
            (401, "token_expired", true, "the service answered 401 token_expired"),
            (403, "trust_too_low", true, "the service answered 403 trust_too_low"),
            (404, "", false, "the service answered 404"),
            (500, "", false, "the service answered 500"),
            (503, "view_missing", false, "the service answered 503 view_missing"),
        ] {
            let error = error_for_status(status, reason, "").unwrap();
            assert!(error.to_string() == text && next_step(&error).is_some(), "{error:?}");
            assert_eq!(matches!(error.cause, Cause::Denied { .. }), is_denied, "{error:?}");
        }
        assert!(error_for_status(200, "", "").is_none() && error_for_status(302, "", "").is_none());
    }

    #[test]
    fn error_states_what_was_required_and_what_the_agent_has() {
        let body = json!({ "error": { "details": {
            "reason": "permission_missing",
            "required": { "permissions": ["write"] }, "actual": { "permissions": ["read"] },
        } } });
        let response = Response { status: 403, headers: HeaderMap::new(), body: body.to_string().into() };
        let error = error_for_status(403, &response.reason(), &response.requirement()).unwrap();
        let expected =
            "the service answered 403 permission_missing (required: permissions write; actual: permissions read)";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn redirect_note_contains_no_secret() {
        let response = |status, location| Response {
            status,
            headers: HeaderMap::from_iter([(LOCATION, HeaderValue::from_static(location))]),
            body: Vec::new(),
        };
        let note = response(302, "https://other.example/x?code=s3cr3t").redirect_note().unwrap();
        assert!(note.contains("redirect to https://other.example/x, which"), "{note}");
        assert!(response(307, "/login?s3cr3t").redirect_note().unwrap().contains("redirect to /login, which"));
        assert_eq!(response(201, "/made").redirect_note(), None);
    }
}
