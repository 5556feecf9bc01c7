//! Tests that requests are counted although their clients leave during the lookup of a credential: otherwise, a client that always
//! leaves could cause any number of lookups.

use countersign_tests::{Agent, ControlPlane, HttpClient, HttpResponse, Postgres, eventually};
use reqwest::RequestBuilder;
use secrecy::ExposeSecret;
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row};

/// Number of requests whose client leaves.
const ABANDONED: usize = 5;

/// Number of requests under `/auth` before: a registration, a challenge and a login.
const EARLIER: usize = 3;

/// The credential with another secret.
fn with_other_secret(credential: &str) -> String {
    let (rest, last) = credential.split_at(credential.len() - 1);
    format!("{rest}{}", if last == "0" { "1" } else { "0" })
}

/// Sends requests whose lookup in a table waits, and leaves during the lookup. Each is counted in the metric with the labels.
async fn send_and_leave(control: &ControlPlane, (table, labels): (&str, &str), request: impl Fn() -> RequestBuilder) {
    let mut database = PgConnection::connect(&control.database_url()).await.unwrap();
    let lock = format!("BEGIN; LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE");
    database.execute(AssertSqlSafe(lock)).await.unwrap();
    let condition = format!("FROM pg_locks WHERE NOT granted AND relation = '{table}'::regclass");
    let (count, cancel) =
        (format!("SELECT COUNT(*) {condition}"), format!("SELECT COUNT(pg_cancel_backend(pid)) {condition}"));
    let mut number =
        async |sql: &String| -> i64 { database.fetch_one(AssertSqlSafe(sql.clone())).await.unwrap().get(0) };
    let admin = HttpClient::plain(control.env["ADMIN_URL"].clone());
    let left = format!("countersign_http_requests_total{{{labels},status=\"499\"}}");
    let left = async || admin.metric(&left).await.unwrap_or_default();
    for _ in 0..ABANDONED {
        let (left_before, response) = (left().await, tokio::spawn(request().send()));
        eventually("the lookup waits", async || (number(&count).await > 0).then_some(()), || control.log()).await;
        response.abort();
        eventually("the client has left", async || (left().await > left_before).then_some(()), || control.log()).await;
        // The lookup of a client that has left can wait for a few seconds more.
        eventually("the lookup ends", async || (number(&cancel).await == 0).then_some(()), || control.log()).await;
    }
    database.execute("ROLLBACK").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_clients_that_leave_during_a_lookup_are_counted() {
    let postgres = Postgres::start().await;
    let limit = format!("limits.address_per_minute={}", EARLIER + ABANDONED);
    let control = ControlPlane::start_replica(&postgres.create_database().await, &[&limit]).await;
    let agent = Agent::register(&control, "agent").await;
    let token = agent.login().await.refresh_token.expose_secret().to_owned();
    let refresh = || control.api.request("POST", "/auth/refresh").json(&json!({ "refreshToken": token }));
    let key = with_other_secret(control.key());
    let list_roles = || control.api.request("GET", &control.path("/roles")).bearer_auth(&key);

    send_and_leave(&control, ("sessions", r#"method="POST",route="/auth/refresh""#), refresh).await;
    assert_eq!(HttpResponse::send(refresh()).await.status, 429);
    for _ in 0..EARLIER {
        control.api.get_as("svc_sk_unknown", &control.path("/roles")).await.expect(401);
    }
    send_and_leave(&control, ("service_keys", r#"method="GET",route="/services/{service}/roles""#), list_roles).await;
    assert_eq!(HttpResponse::send(list_roles()).await.status, 429);
}
