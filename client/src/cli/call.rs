//! `countersign agent call`: one request to a service, with the agent's token.

use super::{
    Failure, Said,
    context::{Context, read, unusable},
    failure::about_certificate,
    login::{Want, Who, tokens},
};
use clap::Args;
use countersign_client::api::{http_client, innermost, place};
use reqwest::{
    Method, Url,
    header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue, LOCATION},
};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use std::{io::Read, net::IpAddr, path::PathBuf};

/// Refusals that a new login mends.
const MENDED: [&str; 4] = ["token_expired", "token_superseded", "token_revoked", "token_key_unknown"];

#[derive(Args)]
pub struct Call {
    /// The URL of the service, as clients reach it: that of the proxy before it
    #[arg(value_name = "URL")]
    target: String,
    #[command(flatten)]
    who: Who,
    /// The method; left out: GET, or POST with data
    #[arg(short = 'X', long)]
    method: Option<String>,
    /// A header, `Name: value`; may stand several times
    #[arg(short = 'H', long = "header", value_name = "HEADER")]
    headers: Vec<String>,
    /// The body; @FILE reads a file, @- standard input
    #[arg(short, long, value_name = "DATA")]
    data: Option<String>,
    /// A PEM file with the authorities to trust for the service, instead of the system's
    #[arg(long, value_name = "FILE")]
    service_ca: Option<PathBuf>,
    /// Send the token over plain HTTP, also beyond this machine
    #[arg(long)]
    plain_http: bool,
}

struct Answer {
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
}

/// Calls; once more after a new login, if the token was refused though it seemed good.
pub async fn run(context: &Context, call: &Call) -> Result<Said, Failure> {
    let request = Request::of(call)?;
    let mut got = tokens(context, &call.who, Want::Good).await?;
    let mut answer = request.send(&got.held.access_token).await?;
    if answer.status == 401 && MENDED.contains(&answer.reason().as_str()) {
        got = tokens(context, &call.who, Want::Login).await?;
        answer = request.send(&got.held.access_token).await?;
    }
    let notes = [got.unremembered(), answer.elsewhere().unwrap_or_default()];
    let notes: Vec<_> = notes.into_iter().filter(|note| !note.is_empty()).collect();
    Ok(said(answer).noting(notes.join("\n")))
}

fn said(answer: Answer) -> Said {
    let failure = failure(answer.status, &answer.reason());
    let headers: serde_json::Map<_, _> = answer
        .headers
        .iter()
        .map(|(name, value)| (name.to_string(), json!(String::from_utf8_lossy(value.as_bytes()))))
        .collect();
    let body = serde_json::from_slice(&answer.body).unwrap_or_else(|_| json!(String::from_utf8_lossy(&answer.body)));
    let value = json!({ "status": answer.status, "headers": headers, "body": body });
    Said::raw(answer.body).with_value(value).failing(failure)
}

/// What the status means, if it is none of success, and what can be done about it.
fn failure(status: u16, reason: &str) -> Option<Failure> {
    let text = format!("the service answered {status} {reason}").trim_end().to_owned();
    let denied = matches!(status, 401 | 403);
    if denied
        && let failure = Failure::denied(&text, reason)
        && failure.next().is_some()
    {
        return Some(failure);
    }
    let next = match status {
        ..=399 => return None,
        401 | 403 if reason.is_empty() => "it gives no reason: is it the URL of the proxy? countersign token verify",
        401 | 403 => "countersign token inspect",
        503 if !reason.is_empty() => "its proxy cannot judge now: try again; the log of countersign-ext-authz says why",
        500.. => "try again; the log of the service says why",
        _ => "are the path, the method and the data what the service wants?",
    };
    let text = format!("{text}\nNext: {next}");
    Some(if denied { Failure::denied(text, reason) } else { Failure::Failed(text) })
}

impl Answer {
    /// Where it points, if it is a redirect: a token does not go wherever somebody says.
    fn elsewhere(&self) -> Option<String> {
        let location = self.headers.get(LOCATION).filter(|_| (300..400).contains(&self.status))?;
        let there = place(&String::from_utf8_lossy(location.as_bytes()));
        Some(format!("the service answered {} and points to {there}, which was not called", self.status))
    }

    /// Why a proxy refused: in a header, or in the body.
    fn reason(&self) -> String {
        if let Some(reason) = self.headers.get("x-agent-reason").and_then(|reason| reason.to_str().ok()) {
            return reason.to_owned();
        }
        let body: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        body["error"]["details"]["reason"].as_str().unwrap_or_default().to_owned()
    }
}

impl Request {
    fn of(call: &Call) -> Result<Self, Failure> {
        let url = Url::parse(&call.target).ok().filter(Url::has_host);
        let url = url.ok_or_else(|| {
            let next = "begin it with https://, or with http:// on this machine";
            Failure::Usage(format!("`{}` is no URL\nNext: {next}", place(&call.target)))
        })?;
        if !matches!(url.scheme(), "https" | "http") {
            let text = format!("`{}` is neither https nor http", place(url.as_str()));
            return Err(Failure::Usage(format!("{text}\nNext: begin it with https://")));
        }
        if url.scheme() != "https" && !call.plain_http && !is_loopback(&url) {
            let text = "a token over plain HTTP is anybody's\nNext: https://, or --plain-http if the way is safe";
            return Err(Failure::Usage(text.into()));
        }
        let default = if call.data.is_some() { "POST" } else { "GET" };
        let method = call.method.as_deref().unwrap_or(default);
        let method = Method::from_bytes(method.as_bytes())
            .map_err(|_| Failure::Usage(format!("`{method}` is no method\nNext: -X PUT, or another word like it")))?;
        let http = match call.service_ca.as_deref() {
            Some(path) => http_client(Some(&read("--service-ca", path)?), |http| http)
                .map_err(|error| unusable(error, "--service-ca", path))?,
            None => http_client(None, |http| http)?,
        };
        let body = call.data.as_deref().map(data).transpose()?;
        Ok(Self { url, method, headers: headers(&call.headers)?, body, http })
    }

    async fn send(&self, token: &SecretString) -> Result<Answer, Failure> {
        let mut request = self.http.request(self.method.clone(), self.url.clone()).headers(self.headers.clone());
        request = if self.headers.contains_key(AUTHORIZATION) {
            // Another kind of credential stands there already.
            request.header("x-agent-token", format!("Bearer {}", token.expose_secret()))
        } else {
            request.bearer_auth(token.expose_secret())
        };
        if let Some(body) = &self.body {
            request = request.body(body.clone());
        }
        let failed = |error| {
            let cause = innermost(&error);
            let trust = "give the authority that signed the service's certificate, with --service-ca FILE";
            let next = about_certificate(&cause, trust).unwrap_or("does the service run, and is the URL right?");
            Failure::Unreachable(format!("cannot reach {}: {cause}\nNext: {next}", place(self.url.as_str())))
        };
        let response = request.send().await.map_err(failed)?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Ok(Answer { status, headers, body: response.bytes().await.map_err(failed)?.to_vec() })
    }
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

fn data(given: &str) -> Result<Vec<u8>, Failure> {
    match given.strip_prefix('@') {
        None => Ok(given.as_bytes().to_vec()),
        Some("-") => {
            let mut bytes = Vec::new();
            let read = std::io::stdin().read_to_end(&mut bytes);
            read.map(|_| bytes).map_err(|error| Failure::Failed(format!("standard input: {error}")))
        }
        Some(path) => read("--data", path.as_ref()),
    }
}

fn headers(given: &[String]) -> Result<HeaderMap, Failure> {
    let mut headers = HeaderMap::new();
    for (line, position) in given.iter().zip(1..) {
        let parsed = line.split_once(':').and_then(|(name, value)| {
            let name = HeaderName::from_bytes(name.trim().as_bytes()).ok()?;
            Some((name, HeaderValue::from_str(value.trim()).ok()?))
        });
        // Any part of it may be a secret, so none is repeated.
        let (name, value) = parsed.ok_or_else(|| {
            Failure::Usage(format!("the {position}. header is none\nNext: write -H 'Name: value', with a colon"))
        })?;
        headers.append(name, value);
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_answer_that_is_no_success_says_what_comes_next() {
        for (status, reason, code, text) in [
            (401, "", 3, "the service answered 401\n"),
            (401, "token_expired", 3, "the service answered 401 token_expired\n"),
            (403, "trust_too_low", 3, "the service answered 403 trust_too_low\n"),
            (404, "", 1, "the service answered 404\n"),
            (500, "", 1, "the service answered 500\n"),
            (503, "view_missing", 1, "the service answered 503 view_missing\n"),
        ] {
            let failure = failure(status, reason).unwrap();
            let next = failure.next().map(|next| format!("\nNext: {next}")).unwrap_or_default();
            let said = format!("{failure}{next}");
            assert!(said.starts_with(text) && said.matches("\nNext: ").count() == 1, "{said}");
            assert_eq!(failure.code(), code);
        }
        assert!(failure(200, "").is_none() && failure(302, "").is_none());
    }

    #[test]
    fn a_redirect_says_where_it_points_without_what_may_be_a_secret() {
        let answer = |status, location| Answer {
            status,
            headers: HeaderMap::from_iter([(LOCATION, HeaderValue::from_static(location))]),
            body: Vec::new(),
        };
        let said = answer(302, "https://other.example/x?code=s3cr3t").elsewhere().unwrap();
        assert!(said.contains("points to https://other.example/x, which"), "{said}");
        assert!(answer(307, "/login?s3cr3t").elsewhere().unwrap().contains("points to /login, which"));
        assert_eq!(answer(201, "/made").elsewhere(), None);
    }
}
