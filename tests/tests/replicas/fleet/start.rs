//! Tests that replicas that start concurrently with an empty database create one Countersign deployment.

use super::{FleetAgent, replica};
use countersign_tests::{
    Database, Issuer, Postgres, ProductionServer, SigningKey, control_plane::MASTER_KEY, issuer::jwks,
};
use futures_util::future::join_all;
use serde_json::json;

const REPLICAS: usize = 10;

/// Asserts that the database has one Countersign deployment, one signing key, one next key, and one head for each audit chain.
async fn assert_one_deployment(database: &str) {
    let mut database = Database::connect(database).await;
    for (sql, expected) in [
        ("SELECT CAST(COUNT(*) AS TEXT) FROM deployment", "1"),
        ("SELECT CAST(COUNT(*) AS TEXT) FROM feed", "1"),
        ("SELECT CAST(COUNT(*) AS TEXT) FROM signing_keys", "2"),
        ("SELECT CAST(COUNT(signs_from) AS TEXT) FROM signing_keys", "1"),
        ("SELECT CAST(COUNT(*) - COUNT(DISTINCT chain) AS TEXT) FROM audit_heads", "0"),
        ("SELECT CAST(COUNT(*) AS TEXT) FROM _sqlx_migrations WHERE NOT success", "0"),
    ] {
        assert_eq!(database.text_column(sql).await, [expected], "{sql}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_concurrent_replicas_on_an_empty_database_create_one_deployment() {
    let postgres = Postgres::start().await;
    let database = postgres.create_database().await;
    let replicas = join_all((0..REPLICAS).map(|_| replica(&database))).await;
    assert_one_deployment(&database).await;
    let agent = FleetAgent::register(&replicas[0]).await;
    let keys = replicas[0].signing_keys().await;
    for (number, control) in replicas.iter().enumerate() {
        assert_eq!(control.signing_keys().await, keys);
        let token = agent.token(control).await;
        let other = &replicas[(number + 3) % REPLICAS];
        other.verify(&token).await.expect(200);
    }
    let verified = replicas[0].command(&["audit", "verify"]);
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stdout));
}

/// Replicas without `--dev` that start concurrently also create one Countersign deployment.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_production_replicas_create_one_deployment() {
    let postgres = Postgres::start().await;
    let database = postgres.create_database().await;
    let (issuer, key, folder) = (Issuer::start(&[]).await, SigningKey::p256("p"), tempfile::tempdir().unwrap());
    let keys = folder.path().join("jwks.json");
    std::fs::write(&keys, jwks(&[&key]).to_string()).unwrap();
    let mut settings = issuer.settings("corp", &[("jwks", keys.to_str().unwrap())]);
    settings.extend([format!("database.url={database}"), format!("secrets.master_key={MASTER_KEY}")]);
    let settings: Vec<_> = settings.iter().map(String::as_str).collect();
    let human = Some(key.token(&issuer.claims("ann")));
    let replicas = join_all((0..REPLICAS).map(|_| ProductionServer::start_as(human.clone(), &settings))).await;
    assert_one_deployment(&database).await;
    let first = replicas[0].api.get("/.well-known/jwks.json").await.expect(200);
    for control in &replicas {
        assert_eq!(control.api.get("/.well-known/jwks.json").await.expect(200), first);
        let role = json!({ "name": "reader", "description": "", "permissions": [] });
        let path = format!("/services/{}/roles", replicas[0].service);
        let status = control.api.send_as(&replicas[0].key, "POST", &path, role).await.status;
        assert!(status == 201 || status == 409, "{status}");
    }
}
