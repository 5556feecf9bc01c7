//! `Idempotency-Key`: a request that comes again is answered again, and done once.

#![expect(clippy::unwrap_used, reason = "a test says what it expects")]

use countersign_client::PrivateKey;
use countersign_control_plane::{App, Config, Dependencies};
use countersign_process::Shutdown;
use countersign_tests::{
    Agent, ControlPlane, HttpResponse, ManualClock, Postgres, control_plane::text, engines, eventually,
    http::HttpClient,
};
use futures_util::future::join_all;
use reqwest::RequestBuilder;
use serde_json::{Value, json};
use std::{collections::BTreeSet, sync::Arc, time::Duration};

/// A request that may come again.
#[derive(Clone)]
struct Asked {
    path: String,
    bearer: Option<String>,
    good: u16,
    body: Value,
    /// The same, with another body.
    other: Value,
}

impl Asked {
    async fn send(&self, site: &HttpClient, key: &str) -> HttpResponse {
        self.send_body(site, key, &self.body).await
    }

    async fn send_body(&self, site: &HttpClient, key: &str, body: &Value) -> HttpResponse {
        let request = site.request("POST", &self.path).header("idempotency-key", key).json(body);
        let request = self.bearer.iter().fold(request, RequestBuilder::bearer_auth);
        HttpResponse::send(request).await
    }
}

fn role(control: &ControlPlane, name: &str) -> Asked {
    let body = |permission: &str| json!({ "name": name, "permissions": [permission] });
    let bearer = Some(control.key().to_owned());
    Asked { path: control.path("/roles"), bearer, good: 201, body: body("read"), other: body("write") }
}

fn registration(email: &str) -> Asked {
    let pem = PrivateKey::generate().public_pem().unwrap();
    let body = |name: &str| json!({ "email": email, "name": name, "publicKey": pem });
    Asked { path: "/auth/register".into(), bearer: None, good: 201, body: body("one"), other: body("two") }
}

fn feedback(control: &ControlPlane, agent: &Agent) -> Asked {
    let body = |score: u32| json!({ "agentId": agent.id, "score": score });
    let bearer = Some(control.key().to_owned());
    Asked { path: "/trust/feedback".into(), bearer, good: 200, body: body(90), other: body(10) }
}

/// How often anything of these kinds was done: roles defined, agents registered, feedbacks told of the agent.
async fn done(control: &ControlPlane, agent: &Agent) -> (usize, usize, usize) {
    let total = async |bearer: &str, path: &str| {
        let listed = control.api.get_as(bearer, path).await.expect(200);
        usize::try_from(listed["pagination"]["total"].as_u64().unwrap()).unwrap()
    };
    let roles = total(control.human(), "/audit?action=role.created").await;
    let agents = total(control.human(), "/audit?action=agent.registered").await;
    (roles, agents, total(control.key(), &format!("/trust/agents/{}/history", agent.id)).await)
}

/// A control plane on each engine.
async fn on_both(postgres: &Postgres) -> [ControlPlane; 2] {
    let setting = format!("database.url={}", postgres.database().await);
    [ControlPlane::start_with(&["database.url="]).await, ControlPlane::start_with(&[&setting]).await]
}

#[tokio::test]
async fn concurrent_requests_with_one_key_run_once_and_get_the_same_response() {
    let postgres = Postgres::start().await;
    for mut control in on_both(&postgres).await {
        let agent = Agent::register(&control, "agent").await;
        let before = done(&control, &agent).await;
        let all = [role(&control, "reader"), registration("a@example.org"), feedback(&control, &agent)];
        let mut answers = Vec::new();
        for asked in &all {
            let came = join_all((0..50).map(|_| asked.send(&control.api, "\"k-1\""))).await;
            let statuses: BTreeSet<_> = came.iter().map(|answer| answer.status).collect();
            let bodies: BTreeSet<_> = came.iter().map(|answer| answer.body.to_string()).collect();
            assert_eq!(statuses, BTreeSet::from([asked.good]), "{}: {bodies:?}", asked.path);
            assert_eq!(bodies.len(), 1, "{}: {bodies:?}", asked.path);
            answers.push(came[0].body.clone());
        }
        let after = done(&control, &agent).await;
        assert_eq!(after, (before.0 + 1, before.1 + 1, before.2 + 1));

        // What became of it since does not change the answer, nor does another life of the server.
        control.set_status(&text(&answers[1]["agentId"]), "suspended").await.expect(200);
        control.delete_role(&text(&answers[0]["roleId"])).await.expect(200);
        control.restart().await;
        for (asked, answer) in all.iter().zip(&answers) {
            let again = asked.send(&control.api, "k-1").await;
            assert_eq!((again.status, &again.body), (asked.good, answer), "{}", asked.path);
        }
        assert_eq!(done(&control, &agent).await, after);
        assert_eq!(control.api.post("/auth/register", all[1].body.clone()).await.expect(201)["status"], "suspended");
    }
}

#[tokio::test]
async fn reused_key_with_another_body_is_refused_and_changes_nothing() {
    let postgres = Postgres::start().await;
    for control in on_both(&postgres).await {
        let agent = Agent::register(&control, "agent").await;
        for asked in [role(&control, "reader"), registration("a@example.org"), feedback(&control, &agent)] {
            let first = asked.send(&control.api, "k").await.expect(asked.good);
            let before = done(&control, &agent).await;
            let refused = asked.send_body(&control.api, "k", &asked.other).await;
            assert_eq!(refused.error(), (409, "CONFLICT", "idempotency_key_reused"), "{}", refused.body);
            assert_eq!(done(&control, &agent).await, before);
            assert_eq!(asked.send(&control.api, "k").await.expect(asked.good), first, "it is still answered");
        }
    }
}

#[tokio::test]
async fn keys_are_separate_per_caller_and_operation() {
    let control = ControlPlane::start().await;
    let agent = Agent::register(&control, "agent").await;
    let (_, others_key) = control.create_service(json!({ "name": "other" })).await;
    let mine = feedback(&control, &agent);
    mine.send(&control.api, "k").await.expect(200);
    let other = Asked { bearer: Some(others_key), ..mine.clone() };
    other.send_body(&control.api, "k", &mine.other).await.expect(200);
    assert_eq!(done(&control, &agent).await.2, 2);
    role(&control, "reader").send(&control.api, "k").await.expect(201);
    let by_hand = Asked { bearer: Some(control.human().to_owned()), ..role(&control, "writer") };
    by_hand.send(&control.api, "k").await.expect(201);
    // In public registration, an address is all that tells one from the other.
    let ids = [registration("a@example.org"), registration("b@example.org")].map(async |asked| {
        let made = asked.send(&control.api, "k").await.expect(201);
        text(&made["agentId"])
    });
    let ids: BTreeSet<_> = join_all(ids).await.into_iter().collect();
    assert_eq!(ids.len(), 2);
    let person = Asked { bearer: Some(control.human().to_owned()), ..registration("a@example.org") };
    person.send(&control.api, "k").await.expect(201);
}

#[tokio::test]
async fn failed_requests_are_not_stored() {
    let control = ControlPlane::start().await;
    let taken = control.create_role("taken", &[]).await;
    let asked = role(&control, "taken");
    assert_eq!(asked.send(&control.api, "k").await.status, 409);
    control.delete_role(&taken).await.expect(200);
    asked.send(&control.api, "k").await.expect(201);
    let asked = role(&control, "other");
    assert_eq!(asked.send_body(&control.api, "k2", &json!({ "name": "other" })).await.status, 400);
    asked.send(&control.api, "k2").await.expect(201);
}

#[tokio::test]
async fn invalid_idempotency_keys_are_refused_with_the_header_name() {
    let control = ControlPlane::start().await;
    let asked = role(&control, "reader");
    let long = "k".repeat(256);
    for key in ["", "\"\"", "two words", "a,b", "\"open", "\"a\"; b=1", &long] {
        let answer = asked.send(&control.api, key).await;
        assert_eq!((answer.status, answer.text("/error/code")), (400, "VALIDATION_ERROR"), "{key}");
        assert!(answer.body["error"]["details"]["fields"]["Idempotency-Key"].is_string(), "{}", answer.body);
    }
    let twice = control.api.request("POST", &asked.path).bearer_auth(control.key()).json(&asked.body);
    let twice = HttpResponse::send(twice.header("idempotency-key", "a").header("idempotency-key", "a")).await;
    assert_eq!(twice.status, 400);
    asked.send(&control.api, &long[..255]).await.expect(201);
}

/// What was under way when the server was killed is sent again: each is done, once.
#[tokio::test]
async fn requests_repeated_after_a_crash_run_once() {
    let postgres = Postgres::start().await;
    for mut control in on_both(&postgres).await {
        let all: Vec<_> = (0..30).map(|number| role(&control, &format!("role {number}"))).collect();
        let site = control.api.clone();
        let send = |(number, asked): (usize, Asked)| {
            let site = site.clone();
            tokio::spawn(async move {
                let request = site.request("POST", &asked.path).header("idempotency-key", format!("k{number}"));
                let request = request.bearer_auth(asked.bearer.unwrap()).json(&asked.body);
                HttpResponse::try_send(request).await.map(|answer| answer.expect(201))
            })
        };
        let under_way: Vec<_> = all.iter().cloned().enumerate().map(send).collect();
        tokio::time::sleep(Duration::from_millis(40)).await;
        control.kill();
        let answered: Vec<_> = join_all(under_way).await.into_iter().map(Result::unwrap).collect();
        control.restart().await;
        for (number, asked) in all.iter().enumerate() {
            let again = asked.send(&control.api, &format!("k{number}")).await.expect(201);
            if let Some(first) = &answered[number] {
                assert_eq!(&again, first);
            }
        }
        let listed = control.api.get_as(control.key(), &control.path("/roles")).await.expect(200);
        assert_eq!(listed["data"].as_array().unwrap().len(), 30);
    }
}

#[tokio::test]
async fn replicas_share_idempotency_keys() {
    let postgres = Postgres::start().await;
    let (database, master) = (format!("database.url={}", postgres.database().await), "ab".repeat(32));
    let settings = [database, format!("secrets.master_key={master}")];
    let settings: Vec<_> = settings.iter().map(String::as_str).collect();
    let one = ControlPlane::start_with(&settings).await;
    let other = ControlPlane::start_with(&settings).await;
    let asked = role(&one, "reader");
    let sites = [&one.api, &other.api];
    let came = join_all((0..20).map(|number| asked.send(sites[number % 2], "k"))).await;
    let ids: BTreeSet<_> = came.into_iter().map(|answer| text(&answer.expect(201)["roleId"])).collect();
    assert_eq!(ids.len(), 1);
}

/// A control plane in this process, whose clock stands still until it is told to go on.
async fn start_at(
    clock: &Arc<ManualClock>,
    folder: &std::path::Path,
) -> (HttpClient, Shutdown, tokio::task::JoinHandle<()>) {
    let any = "127.0.0.1:0".to_owned();
    let settings = [
        ("data_dir", folder.display().to_string()),
        ("listen.api", any.clone()),
        ("listen.sync", any.clone()),
        ("listen.admin", any),
    ];
    let mut flags = settings.map(|(key, value)| (key.to_owned(), value)).to_vec();
    flags.extend(engines::database_of(folder).await.map(|url| ("database.url".to_owned(), url)));
    let config = Config::read(None, Vec::new(), flags, true).unwrap();
    let clock: Arc<ManualClock> = Arc::clone(clock);
    let app = App::bind(config, Dependencies { clock, ..Dependencies::default() }).await.unwrap();
    let url = format!("https://localhost:{}", app.api_address().unwrap().port());
    let site = HttpClient::trusting(url, &std::fs::read(folder.join("ca.pem")).unwrap());
    let shutdown = Shutdown::default();
    let asked = shutdown.clone();
    (site, shutdown, tokio::spawn(async move { app.serve(asked).await.unwrap() }))
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_expire_after_a_day() {
    let (clock, folder) = (ManualClock::new(), tempfile::tempdir().unwrap());
    let (site, shutdown, served) = start_at(&clock, folder.path()).await;
    let asked = registration("a@example.org");
    let first = asked.send(&site, "k").await.expect(201);
    clock.advance(Duration::from_secs(24 * 3600 - 1));
    assert_eq!(asked.send(&site, "k").await.expect(201), first);
    assert_eq!(asked.send_body(&site, "k", &asked.other).await.status, 409);
    clock.advance(Duration::from_secs(1));
    let other = asked.send_body(&site, "k", &asked.other).await.expect(201);
    assert_ne!(other["agentId"], first["agentId"]);
    assert_eq!(asked.send(&site, "k").await.status, 409, "the key is the new one's now");
    shutdown.trigger();
    served.await.unwrap();

    // What is forgotten is not kept either.
    sqlx::any::install_default_drivers();
    let file = || format!("sqlite://{}", folder.path().join("countersign.db").display());
    let url = engines::database_of(folder.path()).await.unwrap_or_else(file);
    let database = sqlx::AnyPool::connect(&url).await.unwrap();
    let kept =
        async || -> i64 { sqlx::query_scalar("SELECT COUNT(*) FROM idempotency").fetch_one(&database).await.unwrap() };
    assert_eq!(kept().await, 1);
    clock.advance(Duration::from_hours(25));
    let (_, shutdown, served) = start_at(&clock, folder.path()).await;
    eventually("it is cleared away", async || (kept().await == 0).then_some(()), String::new).await;
    shutdown.trigger();
    served.await.unwrap();
}
