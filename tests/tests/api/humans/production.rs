//! Operator tokens of a control plane without `--dev`, before and after an issuer is configured.

use super::{INVALID, settings::run_control_plane};
use countersign_tests::{
    HttpResponse, Issuer, SigningKey, eventually,
    http::HttpClient,
    issuer::jwks,
    process::{Process, free_port},
    tools,
};
use std::{path::Path, process::Command};

/// Starts a production deployment in a folder, with its own certificate, the embedded database and these settings.
async fn start(folder: &Path, additional_settings: &[String]) -> (Process, HttpClient) {
    let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificate, key) = (folder.join("tls.crt"), folder.join("tls.key"));
    std::fs::write(&certificate, pair.cert.pem()).unwrap();
    std::fs::write(&key, pair.signing_key.serialize_pem()).unwrap();
    let port = free_port();
    let mut command = Command::new(tools::binary("countersign-control-plane"));
    let settings = [
        format!("data_dir={}", folder.join("data").display()),
        format!("tls.certificate={}", certificate.display()),
        format!("tls.private_key={}", key.display()),
        "public_url=https://localhost".to_owned(),
        format!("listen.api=127.0.0.1:{port}"),
        "listen.sync=127.0.0.1:0".to_owned(),
        "listen.admin=127.0.0.1:0".to_owned(),
    ];
    for setting in settings.iter().chain(additional_settings) {
        command.args(["--set", setting]);
    }
    let process = Process::start(command, &folder.join("log"));
    let api = HttpClient::trusting(format!("https://localhost:{port}"), pair.cert.pem().as_bytes());
    let healthy =
        async || HttpResponse::try_send(api.request("GET", "/health")).await.filter(|response| response.status == 200);
    eventually("the control plane is healthy", healthy, || process.log()).await;
    (process, api)
}

#[tokio::test]
async fn operator_tokens_are_refused_once_an_issuer_is_configured() {
    let key = SigningKey::p256("p");
    let issuer = Issuer::start(&[]).await;
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("jwks.json");
    std::fs::write(&keys, jwks(&[&key]).to_string()).unwrap();
    let issuer_token = key.token(&issuer.claims("ann"));

    let (mut process, api) = start(folder.path(), &[]).await;
    let data = format!("data_dir={}", folder.path().join("data").display());
    let minted = run_control_plane(&["human-token", "mint", "--subject", "ann", "--admin"], &[&data], &[]);
    let minted = String::from_utf8(minted.stdout).unwrap().trim().to_owned();
    api.get_as(&minted, "/services").await.expect(200);
    assert_eq!(api.get_as(&issuer_token, "/services").await.error(), INVALID);
    assert!(process.terminate().await.success());

    let corp = issuer.settings("corp", &[("jwks", keys.to_str().unwrap())]);
    let (_process, api) = start(folder.path(), &corp).await;
    assert_eq!(api.get_as(&minted, "/services").await.error(), INVALID);
    api.get_as(&issuer_token, "/services").await.expect(200);
}

/// Runs `human-token mint` with these settings. Returns exit code, standard output and standard error.
fn mint(settings: &[&str]) -> (Option<i32>, String, String) {
    let output = run_control_plane(&["human-token", "mint", "--subject", "ann"], settings, &[]);
    (output.status.code(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
}

#[tokio::test]
async fn mint_is_refused_once_an_issuer_is_configured() {
    let folder = tempfile::tempdir().unwrap();
    let (_process, _) = start(folder.path(), &[]).await;
    let data = format!("data_dir={}", folder.path().join("data").display());
    let (code, token, _) = mint(&[&data]);
    assert!(code == Some(0) && token.matches('.').count() == 2, "{token}");
    let corp = ["humans.issuers.corp.issuer=https://login.example", "humans.issuers.corp.audience=countersign"];
    for (settings, expected) in [
        (&corp[..], "humans.issuers: human users' tokens come from the configured issuers"),
        (&["database.url=postgres://db/x"], "with PostgreSQL"),
    ] {
        let (code, stdout, error) = mint(&[&[data.as_str()], settings].concat());
        assert!(code == Some(1) && stdout.is_empty() && error.contains(expected), "{settings:?}: {error}");
    }
}

#[test]
fn mint_without_an_operator_key_fails_and_creates_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for directory in [folder.path().to_owned(), folder.path().join("missing")] {
        let (code, token, error) = mint(&[&format!("data_dir={}", directory.display())]);
        let file = directory.join("operator.key").display().to_string();
        assert!(code == Some(1) && token.is_empty(), "{token}");
        assert!(error.contains(&file) && error.contains("there is no operator key"), "{error}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
