//! Clients that disconnect while the server looks up their credential. Their requests still count for the rate limit, and their
//! lookups of API keys still count for the limit of lookups. Otherwise, a client that always disconnects could start any number of
//! lookups.

use countersign_tests::{Agent, ControlPlane, HttpClient, HttpResponse, Postgres, eventually};
use secrecy::ExposeSecret;
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row};

/// Number of requests whose client disconnects.
const ABANDONED: usize = 5;

/// Maximum number of API keys that the server looks up for one client at the same time.
const LOOKUPS_PER_CLIENT: i64 = 2;

/// Number of requests under `/auth` before the abandoned ones: a registration, a challenge and a login.
const EARLIER: usize = 3;

/// The credential with its last character changed.
fn with_other_secret(credential: &str) -> String {
    let (rest, last) = credential.split_at(credential.len() - 1);
    format!("{rest}{}", if last == "0" { "1" } else { "0" })
}

/// Locks a table in PostgreSQL, so that lookups in it wait.
struct LockedTable {
    database: PgConnection,
    name: &'static str,
}

impl LockedTable {
    async fn lock(control: &ControlPlane, name: &'static str) -> Self {
        let mut database = PgConnection::connect(&control.database_url()).await.unwrap();
        let lock = format!("BEGIN; LOCK TABLE {name} IN ACCESS EXCLUSIVE MODE");
        database.execute(AssertSqlSafe(lock)).await.unwrap();
        Self { database, name }
    }

    async fn number(&mut self, what: &str) -> i64 {
        let name = self.name;
        let sql = format!("SELECT COUNT({what}) FROM pg_locks WHERE NOT granted AND relation = '{name}'::regclass");
        self.database.fetch_one(AssertSqlSafe(sql)).await.unwrap().get(0)
    }

    /// The number of lookups that wait for the table.
    async fn waiting(&mut self) -> i64 {
        self.number("*").await
    }

    async fn cancel(&mut self) -> i64 {
        self.number("pg_cancel_backend(pid)").await
    }
}

/// The number of requests with these labels whose client has disconnected.
async fn left(control: &ControlPlane, labels: &str) -> f64 {
    let admin = HttpClient::plain(control.env["ADMIN_URL"].clone());
    let metric = format!("countersign_http_requests_total{{{labels},status=\"499\"}}");
    admin.metric(&metric).await.unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_clients_that_disconnect_during_a_lookup_are_counted() {
    let postgres = Postgres::start().await;
    let limit = format!("limits.address_per_minute={}", EARLIER + ABANDONED);
    let control = ControlPlane::start_replica(&postgres.create_database().await, &[&limit]).await;
    let agent = Agent::register(&control, "agent").await;
    let token = agent.login().await.refresh_token.expose_secret().to_owned();
    let refresh = || control.api.request("POST", "/auth/refresh").json(&json!({ "refreshToken": token }));
    let labels = r#"method="POST",route="/auth/refresh""#;
    let mut table = LockedTable::lock(&control, "sessions").await;
    for _ in 0..ABANDONED {
        let (left_before, response) = (left(&control, labels).await, tokio::spawn(refresh().send()));
        eventually("the lookup waits", async || (table.waiting().await > 0).then_some(()), || control.log()).await;
        response.abort();
        let has_left = async || (left(&control, labels).await > left_before).then_some(());
        eventually("the client has left", has_left, || control.log()).await;
        // The lookup may wait for a few more seconds after its client has disconnected, so cancel it.
        eventually("the lookup ends", async || (table.cancel().await == 0).then_some(()), || control.log()).await;
    }
    drop(table);
    assert_eq!(HttpResponse::send(refresh()).await.status, 429);
}

#[tokio::test(flavor = "multi_thread")]
async fn lookups_of_api_keys_stay_limited_when_their_clients_disconnect() {
    let postgres = Postgres::start().await;
    let control = ControlPlane::start_replica(&postgres.create_database().await, &[]).await;
    let key = with_other_secret(control.key());
    let labels = r#"method="GET",route="/services/{service}/roles""#;
    let mut table = LockedTable::lock(&control, "service_keys").await;
    let requests: Vec<_> = (0..ABANDONED)
        .map(|_| tokio::spawn(control.api.request("GET", &control.path("/roles")).bearer_auth(&key).send()))
        .collect();
    eventually("lookups wait", async || (table.waiting().await > 0).then_some(()), || control.log()).await;
    requests.iter().for_each(tokio::task::JoinHandle::abort);
    let count = |left: f64| left >= 1.0;
    eventually("clients have left", async || count(left(&control, labels).await).then_some(()), || control.log()).await;
    let again = tokio::spawn(control.api.request("GET", &control.path("/roles")).bearer_auth(&key).send());
    assert!((1..=LOOKUPS_PER_CLIENT).contains(&table.waiting().await), "lookups of one client");
    drop(table);
    assert_eq!(again.await.unwrap().unwrap().status(), 401);
}
