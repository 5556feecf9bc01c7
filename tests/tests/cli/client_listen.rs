//! `countersign webhook listen`: signatures, responses, and how the command ends. The tests themselves build most webhook requests.

use crate::control_and_shell;
use aws_lc_rs::hmac;
use base64::{Engine, engine::general_purpose::STANDARD};
use countersign_client::clock;
use countersign_tests::{
    Agent, ControlPlane, HttpClient, HttpResponse, Shell, WebhookListener, eventually,
    process::{Process, free_port},
};
use reqwest::RequestBuilder;
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead, BufReader},
    net::TcpStream,
    process::Stdio,
    time::Duration,
};

const SECRET: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const OTHER: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const EVENT: &str = "evt_00000000000000000000000001";

fn body() -> Value {
    json!({ "event": "agent.role_revoked", "timestamp": "2030-01-02T03:04:05Z", "data": { "roleName": "reader" } })
}

/// A request without a signature, to any path.
fn post(url: &str) -> RequestBuilder {
    HttpClient::plain(url.trim_end_matches('/').to_owned()).request("POST", "/any/path")
}

/// A signed request.
fn signed(url: &str, secret: &str, sent: i64, body: &str) -> RequestBuilder {
    let key = STANDARD.decode(secret.strip_prefix("whsec_").unwrap()).unwrap();
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), format!("{EVENT}.{sent}.{body}").as_bytes());
    let request = post(url).body(body.to_owned());
    let request = request.header("webhook-id", EVENT).header("webhook-timestamp", sent);
    request.header("webhook-signature", format!("v1,{}", STANDARD.encode(tag.as_ref())))
}

/// A signed request with an event, sent now.
fn event(url: &str, secret: &str) -> RequestBuilder {
    signed(url, secret, clock::now().seconds(), &body().to_string())
}

async fn send(request: RequestBuilder) -> (u16, String) {
    let response = request.send().await.unwrap();
    (response.status().as_u16(), response.text().await.unwrap().trim().to_owned())
}

/// A shell with a secret in its environment.
fn shell_with_secret(secret: &str) -> Shell {
    let mut shell = Shell::new();
    shell.export("COUNTERSIGN_WEBHOOK_SECRET", secret);
    shell
}

#[tokio::test]
async fn requests_are_printed_with_the_result_of_verification() {
    let shell = shell_with_secret(SECRET);
    let mut listener = WebhookListener::start(&shell, &["--count", "5"]).await;
    assert_eq!(listener.target, None);
    assert_eq!(send(event(&listener.url, SECRET)).await, (200, "received".into()));
    let (status, text) = send(event(&listener.url, OTHER)).await;
    assert!(status == 401 && text.starts_with("the signature is wrong"), "{status} {text}");
    let old = signed(&listener.url, SECRET, clock::now().seconds() - 400, &body().to_string());
    let (status, text) = send(old).await;
    assert!(status == 401 && text.contains("five minutes ago"), "{status} {text}");
    let no_event = signed(&listener.url, SECRET, clock::now().seconds(), "[]");
    assert_eq!(send(no_event).await.0, 400, "the signature is valid, but the body is not an event");
    let (status, text) = send(post(&listener.url)).await;
    assert!(status == 401 && text.contains("webhook-id is missing"), "{status} {text}");

    assert_eq!(listener.wait_for_exit().await.code(), Some(1), "a request was invalid");
    let lines = listener.events();
    let field = |name: &str| lines.iter().map(|line| line[name].clone()).collect::<Vec<_>>();
    assert_eq!(field("signature"), ["good", "bad", "bad", "good", "bad"]);
    assert_eq!(field("eventId"), [json!(EVENT), json!(EVENT), json!(EVENT), json!(EVENT), Value::Null]);
    let problems = field("problem");
    assert_eq!(problems[0], Value::Null);
    assert!(problems[1..].iter().all(Value::is_string), "{problems:?}");
    let event = json!({ "event": lines[0]["event"], "timestamp": lines[0]["timestamp"], "data": lines[0]["data"] });
    assert_eq!(event, body());
    let log = listener.log();
    assert!(log.contains("4 of 5 requests were invalid"), "{log}");
    assert!(!log.contains(&SECRET[6..]) && !log.contains(&OTHER[6..]), "{log}");
}

#[tokio::test]
async fn text_output_has_a_line_per_event_without_forged_data() {
    let shell = shell_with_secret(&format!("{OTHER}\n{SECRET}\n"));
    let port = free_port().to_string();
    let command = shell.command(&["webhook", "listen", "--port", &port, "--count", "2"]);
    let mut process = Process::start(command, &shell.path("log"));
    let announced = async || process.log().contains("Listening on").then_some(());
    eventually("it listens", announced, || process.log()).await;
    let url = format!("http://127.0.0.1:{port}");
    let forged = r#"{"event":"\u001b[2Jforged","data":{"roleName":"admin"}}"#;
    let request = post(&url).header("webhook-id", EVENT).header("webhook-timestamp", "1");
    assert_eq!(send(request.header("webhook-signature", "v1,AAAA").body(forged)).await.0, 401);
    assert_eq!(send(event(&url, SECRET)).await.0, 200, "the second secret is accepted too");
    assert_eq!(process.wait_for_exit().await.code(), Some(1));
    let log = process.log();
    let lines: Vec<_> = log.lines().filter(|line| line.starts_with("bad ") || line.starts_with("good")).collect();
    assert!(lines[0].contains("?[2Jforged") && !lines[0].contains("admin") && !log.contains('\u{1b}'), "{log}");
    assert!(lines[1].contains("agent.role_revoked") && lines[1].ends_with("roleName=reader"), "{log}");
}

#[tokio::test]
async fn requests_that_are_not_webhooks_are_refused_and_not_counted() {
    let shell = shell_with_secret(SECRET);
    let mut listener = WebhookListener::start(&shell, &["--count", "1"]).await;
    let site = HttpClient::plain(listener.url.trim_end_matches('/').to_owned());
    let response = HttpResponse::send(site.request("GET", "/")).await;
    assert_eq!((response.status, response.header("allow")), (405, "POST"));
    let large = "x".repeat(256 * 1024 + 1);
    assert_eq!(send(signed(&listener.url, SECRET, clock::now().seconds(), &large)).await.0, 413);
    let long = event(&listener.url, SECRET).header("x-long", "x".repeat(64 * 1024)).send().await;
    assert!(long.is_err() || long.unwrap().status() == 431, "the size of the request head is limited");
    assert_eq!(listener.events(), Vec::<Value>::new());
    assert_eq!(send(event(&listener.url, SECRET)).await.0, 200);
    assert!(listener.wait_for_exit().await.success(), "{}", listener.log());
}

#[tokio::test]
async fn connections_are_limited_and_do_not_delay_the_end() {
    let shell = shell_with_secret(SECRET);
    let mut listener = WebhookListener::start(&shell, &[]).await;
    let address = listener.url.trim_start_matches("http://").trim_end_matches('/').to_owned();
    // Idle connections are closed after a while. On a busy machine, the first ones may be closed before the last one is open, so
    // try again.
    let is_limited = async || {
        let idle: Vec<_> = (0..256).map(|_| TcpStream::connect(&address).unwrap()).collect();
        let late = event(&listener.url, SECRET).timeout(Duration::from_millis(500)).send().await;
        drop(idle);
        late.is_err_and(|error| error.is_timeout()).then_some(())
    };
    eventually("all connections are in use", is_limited, String::new).await;
    assert_eq!(send(event(&listener.url, SECRET)).await.0, 200);
    let _still_there = TcpStream::connect(&address).unwrap();
    assert!(listener.stop("TERM").await.success(), "{}", listener.log());
}

#[tokio::test]
async fn event_is_refused_if_the_output_is_closed() {
    let mut child =
        shell_with_secret(SECRET).command(&["-o", "json", "webhook", "listen"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut first = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    let url = serde_json::from_str::<Value>(&first).unwrap()["listening"].as_str().unwrap().to_owned();
    // The reader of the listener's output has closed the pipe.
    let answer = send(event(&url, SECRET)).await;
    assert_eq!(answer, (503, "the receiver is shutting down".into()), "the sender tries again");
    assert!(child.wait().unwrap().success(), "a closed pipe is not an error");
}

#[tokio::test]
async fn signals_end_the_command() {
    let shell = shell_with_secret(SECRET);
    for signal in ["INT", "TERM", "HUP"] {
        let mut listener = WebhookListener::start(&shell, &[]).await;
        assert!(listener.stop(signal).await.success(), "{signal}: {}", listener.log());
    }
}

#[tokio::test]
async fn invalid_secret_or_port_is_an_error() {
    let mut shell = Shell::new();
    shell.assert_fails(2, &["webhook", "listen"], &["the control plane is not set"]);
    let file = |name: &str, text: &str| {
        fs::write(shell.path(name), text).unwrap();
        shell.path(name).display().to_string()
    };
    let (good, empty, wrong) = (file("good", SECRET), file("empty", "\n"), file("wrong", "whsec_s3cr3t"));
    for (arguments, code, text) in [
        (vec!["--secret-file", "/nowhere"], 1, "--secret-file /nowhere: "),
        (vec!["--secret-file", &empty], 2, "the secret is not set"),
        (vec!["--secret-file", &wrong], 2, "--secret-file: a webhook secret must be whsec_ and Base64"),
        (vec!["--secret-file", &good, "--events", "agent.authenticated"], 2, "--events has no effect"),
        (vec!["--secret-file", &good, "--count", "0"], 2, "--count"),
    ] {
        let error = shell.assert_fails(code, &[&["webhook", "listen"], arguments.as_slice()].concat(), &[text]);
        assert!(!error.contains("s3cr3t") && !error.contains(&SECRET[6..]), "{error}");
    }
    shell.export("COUNTERSIGN_WEBHOOK_SECRET", "svc_sk_s3cr3t");
    let error = shell.assert_fails(2, &["webhook", "listen"], &["must begin with whsec_"]);
    assert!(!error.contains("s3cr3t"), "{error}");

    shell.export("COUNTERSIGN_WEBHOOK_SECRET", SECRET);
    let taken = WebhookListener::start(&shell, &[]).await;
    let port = taken.url.trim_end_matches('/').rsplit(':').next().unwrap().to_owned();
    shell.assert_fails(1, &["webhook", "listen", "--port", &port], &[&format!("port {port}: "), "\nNext: "]);
}

#[tokio::test]
async fn listen_creates_a_webhook_and_deletes_it_at_the_end() {
    let (control, shell) = control_and_shell(&["URL", "CA", "SERVICE_ID", "SERVICE_KEY"]).await;
    let mut listener = WebhookListener::start(&shell, &["--events", "agent.role_assigned"]).await;
    let target = listener.target.clone().unwrap();
    let listed = shell.json(&["webhook", "list"]);
    assert_eq!((&listed[0]["webhookId"], &listed[0]["url"]), (&json!(target), &json!(listener.url)));
    assert_eq!(listed[0]["events"], json!(["agent.role_assigned"]));

    let (agent, role) = Agent::with_role(&control, "reader", &[]).await;
    let arrival = listener.wait_for_events(1).await.remove(0);
    assert_eq!((&arrival["signature"], &arrival["problem"]), (&json!("good"), &Value::Null));
    assert_eq!((&arrival["event"], &arrival["data"]["agentId"]), (&json!("agent.role_assigned"), &json!(agent.id)));
    assert!(listener.stop("INT").await.success(), "{}", listener.log());
    assert!(!listener.log().contains("whsec_"), "{}", listener.log());
    assert_eq!(shell.json(&["webhook", "list"]), json!([]), "the webhook is deleted");

    let mut listener = WebhookListener::start(&shell, &["--count", "1"]).await;
    control.revoke(&agent.id, &role).await;
    assert!(listener.wait_for_exit().await.success(), "{}", listener.log());
    assert_eq!(listener.events()[0]["event"], "agent.role_revoked");
    assert_eq!(shell.json(&["webhook", "list"]), json!([]));
}

#[tokio::test]
async fn webhook_that_cannot_be_deleted_at_the_end_is_named() {
    let mut control = ControlPlane::start_process().await;
    let shell = Shell::with_env(&control, &["URL", "CA", "SERVICE_ID", "SERVICE_KEY"]);
    let mut listener = WebhookListener::start(&shell, &[]).await;
    let target = listener.target.clone().unwrap();
    control.kill();
    assert_eq!(listener.stop("TERM").await.code(), Some(1));
    let log = listener.log();
    assert!(log.contains(&format!("countersign webhook delete {target}")), "{log}");
}
