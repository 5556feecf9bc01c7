//! No secret is logged at any level, wherever it is sent.

use super::{
    credentials::{Credentials, KINDS, Kind, check_access},
    fixture::{Fixture, assert_none},
    routes::{ROUTES, Route},
};
use countersign_tests::{HttpResponse, RawRequest, Sidecar, openssl::openssl_text, sidecar::request};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Values that the logs do contain: a request id of a caller, and a rule of the operator.
const SENTINELS: [&str; 2] = ["sentinel-of-a-caller", "sentinel-of-an-operator"];

/// Every secret as it is sent, by name.
struct Secrets(BTreeMap<String, String>);

impl Secrets {
    async fn of(fixture: &Fixture, credentials: &Credentials) -> Self {
        let kinds = KINDS.into_iter().filter(|kind| {
            !matches!(kind, Kind::Nothing | Kind::ServiceId | Kind::Challenge | Kind::Garbage | Kind::RawBytes)
        });
        let mut all: BTreeMap<_, _> =
            kinds.map(|kind| (format!("{kind:?}"), credentials.text(kind).to_owned())).collect();
        let challenge = fixture.challenge().await;
        let pem = openssl_text("genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256", "");
        let file = |name: &str| std::fs::read_to_string(fixture.control.folder().join(name)).unwrap();
        let more = [
            ("a nonce", challenge.nonce),
            ("its signature", challenge.signature),
            ("a spare key", fixture.spare_key.clone()),
            ("an agent's private key", pem),
            ("the master key", fixture.control.master_key()),
            ("the operator key", file("operator.key")),
        ];
        all.extend(more.map(|(name, text)| (name.to_owned(), text)));
        Self(all)
    }

    /// The secret parts of each value: public prefixes and headers are left out.
    fn secret_parts(&self) -> Vec<(&str, &str)> {
        let mut secret_parts = Vec::new();
        for (name, text) in &self.0 {
            let parts: Vec<&str> = if text.starts_with("eyJ") {
                text.split('.').skip(1).collect()
            } else if text.contains("-----") {
                text.lines().filter(|line| !line.contains("-----") && line.len() > 20).collect()
            } else {
                vec![&text[text.len() - 32..]]
            };
            secret_parts.extend(parts.into_iter().map(|part| (name.as_str(), part)));
        }
        secret_parts
    }

    fn found_in<'a>(&'a self, log: &'a str) -> impl Iterator<Item = String> + 'a {
        let line =
            |part: &str| log.lines().find(|line| line.contains(part)).map(|line| line.chars().take(300).collect());
        self.secret_parts().into_iter().filter_map(move |(name, part)| {
            let line: Option<String> = line(part);
            line.map(|line| format!("{name} is in the log: {line}"))
        })
    }
}

/// Sends the secret in every position of a body, and in malformed bodies.
async fn send_in_bodies(fixture: &Fixture, route: &Route, secret: &str) {
    let good = fixture.body(route).await;
    let mut bodies: Vec<String> = Vec::new();
    for field in route.fields {
        for value in [json!(secret), json!([secret]), json!({ secret: secret })] {
            let mut body = good.clone();
            body.insert(field.name.to_owned(), value);
            bodies.push(Value::Object(body).to_string());
        }
    }
    let mut more = good.clone();
    more.insert(secret.to_owned(), json!(secret));
    let text = json!(secret).to_string();
    bodies.extend([
        Value::Object(more).to_string(),
        text.clone(),
        format!("{{{text}:{text},{text}:{text}}}"),
        secret.into(),
    ]);
    bodies.push(format!("{{\"a\":{text}"));
    for body in bodies {
        let request = fixture.authorized(route).header("content-type", "application/json").body(body);
        let _response = HttpResponse::send(request).await;
    }
}

/// Sends the secret in paths, queries and headers.
async fn send_in_heads(fixture: &Fixture, secret: &str) {
    let plain: String = secret.chars().filter(char::is_ascii_graphic).collect();
    let api = &fixture.control.api;
    for path in [
        format!("/{plain}"),
        format!("/services/{plain}/roles"),
        format!("/services/{}/agents/{plain}", fixture.control.service()),
        format!("/health?access_token={plain}"),
        format!("/health?{plain}"),
    ] {
        let _response = HttpResponse::send(api.request("GET", &path).bearer_auth(fixture.control.key())).await;
        let _response = RawRequest::get(&path).send_tls(&fixture.control, b"").await;
    }
    for (name, value) in [
        ("cookie", format!("token={plain}")),
        ("user-agent", plain.clone()),
        ("referer", format!("https://a.example/?{plain}")),
        ("content-type", plain.clone()),
        ("x-forwarded-for", plain.clone()),
        ("authorization", format!("Basic {plain}")),
        ("authorization", format!("Bearer {plain}, Bearer {plain}")),
        ("proxy-authorization", format!("Bearer {plain}")),
        (
            &format!("x-{}", &plain[..plain.len().min(20)].to_lowercase().replace(['_', '.', '+', '/', '='], "-")),
            plain.clone(),
        ),
    ] {
        let _response = HttpResponse::send(api.request("GET", "/health").header(name, &value)).await;
        let _response = RawRequest::get("/health").with(name, &value).send_tls(&fixture.control, b"").await;
    }
    let _response = RawRequest::new(&plain[..plain.len().min(64)], "/health").send_tls(&fixture.control, b"").await;
}

/// Sends the secret in every part of a check request.
async fn send_in_checks(sidecar: &Sidecar, secret: &str) {
    let plain: String = secret.chars().filter(char::is_ascii_graphic).collect();
    let bearer = format!("Bearer {plain}");
    for (name, value) in [
        ("authorization", bearer.as_str()),
        ("authorization", &format!("{bearer},{bearer}")),
        ("x-agent-token", &bearer),
        ("x-agent-token", &plain),
        ("x-agent-id", &plain),
        ("cookie", &plain),
        (&plain, &plain),
    ] {
        for extensions in
            [&[][..], &[("allow_unassigned", "true")], &[("allow_anonymous", "true"), ("forward_token", "true")]]
        {
            let mut check = request(&[(name, value)], extensions);
            let http = check.attributes.as_mut().and_then(|attributes| attributes.request.as_mut()?.http.as_mut());
            http.unwrap().path = format!("/?token={plain}");
            sidecar.client().await.check(check).await.unwrap();
        }
    }
}

#[tokio::test]
async fn logs_contain_no_secret() {
    let fixture = Fixture::with_settings(&["log.level=trace"]).await;
    let sync = fixture.control.create_key(fixture.control.service(), "sync").await;
    let sidecar = Sidecar::start_with(&fixture.control, &[&sync], &["log.level=trace"]);
    sidecar.await_ready().await;
    let credentials = Credentials::of(&fixture).await;
    let mut secrets = Secrets::of(&fixture, &credentials).await;
    secrets.0.insert("the sidecar's key".into(), sync);

    assert_none(&check_access(&fixture, &credentials).await);
    for secret in secrets.0.values() {
        for route in ROUTES.iter().filter(|route| !route.fields.is_empty()) {
            send_in_bodies(&fixture, route, secret).await;
        }
        send_in_heads(&fixture, secret).await;
        send_in_checks(&sidecar, secret).await;
    }
    let named = fixture.control.api.request("GET", "/health").header("x-request-id", SENTINELS[0]);
    HttpResponse::send(named).await.expect(200);
    assert_eq!(
        sidecar.check_with(&[], &[("require_roles", &format!("{},", SENTINELS[1]))]).await.reason,
        "rule_invalid"
    );

    let logs = [fixture.control.log(), sidecar.log()];
    // Stop the servers before the assertions: a server that is dropped by a panic prints its whole log.
    drop((fixture, sidecar));
    for (log, sentinel) in logs.iter().zip(SENTINELS) {
        assert!(log.contains("TRACE") && log.contains(sentinel), "the sentinel is in the log of {} bytes", log.len());
    }
    let found: Vec<_> = logs.iter().flat_map(|log| secrets.found_in(log)).collect();
    assert_none(&found);
}
