//! Operator tokens of a control plane without `--dev`, before and after an issuer is configured.

use super::{INVALID, settings::run_control_plane};
use countersign_tests::{Issuer, ProductionServer, SigningKey, issuer::jwks};

#[tokio::test]
async fn operator_tokens_are_refused_once_an_issuer_is_configured() {
    let key = SigningKey::p256("p");
    let issuer = Issuer::start(&[]).await;
    let keys = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&keys, jwks(&[&key]).to_string()).unwrap();
    let issuer_token = key.token(&issuer.claims("ann"));
    let mut server = ProductionServer::start(&[]).await;
    server.api.get_as(&server.human, "/services").await.expect(200);
    assert_eq!(server.api.get_as(&issuer_token, "/services").await.error(), INVALID);

    let corp = issuer.settings("corp", &[("jwks", keys.path().to_str().unwrap())]);
    server.restart_with(&corp.iter().map(String::as_str).collect::<Vec<_>>()).await;
    assert_eq!(server.api.get_as(&server.human, "/services").await.error(), INVALID);
    server.api.get_as(&issuer_token, "/services").await.expect(200);
}

/// Runs `human-token mint` with these settings. Returns exit code, standard output and standard error.
fn mint(settings: &[&str]) -> (Option<i32>, String, String) {
    run_control_plane(&["human-token", "mint", "--subject", "ann"], settings, &[])
}

#[tokio::test]
async fn mint_is_refused_once_an_issuer_is_configured() {
    let server = ProductionServer::start(&[]).await;
    let data = server.data_setting();
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
