//! Tests that the logs of all levels contain no secret, in whichever part of a request the secret is sent.

use super::{
    credentials::{CREDENTIAL_KINDS, CredentialKind, Credentials, check_access},
    fixture::Fixture,
    routes::{ROUTES, Route},
};
use countersign_tests::{HttpResponse, RawRequest, Sidecar, eventually, openssl::openssl_text, sidecar::check_request};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Values that the logs must contain: a request id of a caller and a rule of the operator.
const SENTINELS: [&str; 2] = ["sentinel-of-a-caller", "sentinel-of-an-operator"];

/// Every secret in the form in which it is sent, by name.
struct Secrets(BTreeMap<String, String>);

impl Secrets {
    async fn collect(fixture: &Fixture, credentials: &Credentials) -> Self {
        let kinds = CREDENTIAL_KINDS.into_iter().filter(|kind| {
            !matches!(
                kind,
                CredentialKind::NoCredential
                    | CredentialKind::ServiceId
                    | CredentialKind::Challenge
                    | CredentialKind::Garbage
                    | CredentialKind::RawBytes
            )
        });
        let mut all: BTreeMap<_, _> =
            kinds.map(|kind| (format!("{kind:?}"), credentials.text(kind).to_owned())).collect();
        let challenge = fixture.challenge().await;
        let pem = openssl_text("genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256", "");
        let file = |name: &str| std::fs::read_to_string(fixture.control.folder().join(name)).unwrap();
        let other_secrets = [
            ("the nonce of a challenge", challenge.nonce),
            ("the signature of a challenge", challenge.signature),
            ("a spare key", fixture.spare_key.clone()),
            ("an agent's private key", pem),
            ("the master key", fixture.control.master_key()),
            ("the operator key", file("operator.key")),
        ];
        all.extend(other_secrets.map(|(name, text)| (name.to_owned(), text)));
        Self(all)
    }

    /// The secret parts of each value, without public prefixes and headers.
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

    fn leaks_in<'a>(&'a self, log: &'a str) -> impl Iterator<Item = String> + 'a {
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
    let valid_body = fixture.body(route).await;
    let mut bodies: Vec<String> = Vec::new();
    for field in route.fields {
        for value in [json!(secret), json!([secret]), json!({ secret: secret })] {
            let mut body = valid_body.clone();
            body.insert(field.name.to_owned(), value);
            bodies.push(Value::Object(body).to_string());
        }
    }
    let mut with_extra_field = valid_body.clone();
    with_extra_field.insert(secret.to_owned(), json!(secret));
    let text = json!(secret).to_string();
    bodies.extend([
        Value::Object(with_extra_field).to_string(),
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
async fn send_in_request_heads(fixture: &Fixture, secret: &str) {
    let ascii_secret: String = secret.chars().filter(char::is_ascii_graphic).collect();
    let api = &fixture.control.api;
    for path in [
        format!("/{ascii_secret}"),
        format!("/services/{ascii_secret}/roles"),
        format!("/services/{}/agents/{ascii_secret}", fixture.control.service()),
        format!("/health?access_token={ascii_secret}"),
        format!("/health?{ascii_secret}"),
    ] {
        let _response = HttpResponse::send(api.request("GET", &path).bearer_auth(fixture.control.key())).await;
        let _response = RawRequest::get(&path).send_tls(&fixture.control, b"").await;
    }
    for (name, value) in [
        ("cookie", format!("token={ascii_secret}")),
        ("user-agent", ascii_secret.clone()),
        ("referer", format!("https://a.example/?{ascii_secret}")),
        ("content-type", ascii_secret.clone()),
        ("x-forwarded-for", ascii_secret.clone()),
        ("authorization", format!("Basic {ascii_secret}")),
        ("authorization", format!("Bearer {ascii_secret}, Bearer {ascii_secret}")),
        ("proxy-authorization", format!("Bearer {ascii_secret}")),
        (
            &format!(
                "x-{}",
                &ascii_secret[..ascii_secret.len().min(20)].to_lowercase().replace(['_', '.', '+', '/', '='], "-")
            ),
            ascii_secret.clone(),
        ),
    ] {
        let _response = HttpResponse::send(api.request("GET", "/health").header(name, &value)).await;
        let _response = RawRequest::get("/health").with(name, &value).send_tls(&fixture.control, b"").await;
    }
    let _response =
        RawRequest::new(&ascii_secret[..ascii_secret.len().min(64)], "/health").send_tls(&fixture.control, b"").await;
}

/// Sends the secret in every part of a check request.
async fn send_in_checks(sidecar: &Sidecar, secret: &str) {
    let ascii_secret: String = secret.chars().filter(char::is_ascii_graphic).collect();
    let bearer = format!("Bearer {ascii_secret}");
    for (name, value) in [
        ("authorization", bearer.as_str()),
        ("authorization", &format!("{bearer},{bearer}")),
        ("x-agent-token", &bearer),
        ("x-agent-token", &ascii_secret),
        ("x-agent-id", &ascii_secret),
        ("cookie", &ascii_secret),
        (&ascii_secret, &ascii_secret),
    ] {
        for extensions in
            [&[][..], &[("allow_unassigned", "true")], &[("allow_anonymous", "true"), ("forward_token", "true")]]
        {
            let mut check = check_request(&[(name, value)], extensions);
            let http = check.attributes.as_mut().and_then(|attributes| attributes.request.as_mut()?.http.as_mut());
            http.unwrap().path = format!("/?token={ascii_secret}");
            sidecar.client().await.check(check).await.unwrap();
        }
    }
}

#[tokio::test]
async fn logs_contain_no_secret() {
    let fixture = Fixture::with_settings(&["log.level=trace"]).await;
    let sync = fixture.control.create_key(fixture.control.service(), "sync").await;
    let sidecar = Sidecar::start_with(&fixture.control, &[&sync], &["log.level=trace"]);
    sidecar.wait_until_ready().await;
    let credentials = Credentials::create(&fixture).await;
    let mut secrets = Secrets::collect(&fixture, &credentials).await;
    secrets.0.insert("the sidecar's key".into(), sync);

    check_access(&fixture, &credentials).await.assert_none();
    for secret in secrets.0.values() {
        for route in ROUTES.iter().filter(|route| !route.fields.is_empty()) {
            send_in_bodies(&fixture, route, secret).await;
        }
        send_in_request_heads(&fixture, secret).await;
        send_in_checks(&sidecar, secret).await;
    }
    // The server does not log every request to a public route, so repeat the request until one of them is in the log.
    let is_logged = async || {
        let request = fixture.control.api.request("GET", "/health").header("x-request-id", SENTINELS[0]);
        HttpResponse::send(request).await.expect(200);
        fixture.control.log().contains(SENTINELS[0]).then_some(())
    };
    eventually("a request is logged", is_logged, String::new).await;
    assert_eq!(
        sidecar.check_with(&[], &[("require_roles", &format!("{},", SENTINELS[1]))]).await.reason,
        "rule_invalid"
    );

    let logs = [fixture.control.log(), sidecar.log()];
    // Stop the servers before the assertions, because a server that is dropped during a panic prints its log.
    drop((fixture, sidecar));
    for (log, sentinel) in logs.iter().zip(SENTINELS) {
        assert!(
            log.contains("TRACE") && log.contains(sentinel),
            "the log of {} bytes does not contain the sentinel",
            log.len()
        );
    }
    let leaks: Vec<_> = logs.iter().flat_map(|log| secrets.leaks_in(log)).collect();
    assert!(leaks.is_empty(), "{}", leaks.join("\n"));
}
