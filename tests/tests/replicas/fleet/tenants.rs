//! Tests that tenants who use two replicas at the same time get no more than with one. The modules `api::quotas` and
//! `api::known_agents` have more such tests, which run with two replicas too.

use super::{FleetAgent, Replicas};
use countersign_tests::{HttpResponse, Sidecar, control_plane::text};
use futures_util::future::join_all;
use serde_json::{Value, json};

/// Two replicas with one database, and a human user, who has a token for each replica.
struct Fleet {
    replicas: Replicas,
    humans: [String; 2],
}

impl Fleet {
    async fn start() -> Self {
        let replicas = Replicas::start().await;
        let humans = replicas.both().map(|replica| replica.mint_human("alice"));
        Self { replicas, humans }
    }

    /// Sends the same request 50 times at once, half of them to each replica.
    async fn fifty_at_once(&self, path: &str, bearer: &str, body: &Value) -> Vec<HttpResponse> {
        let apis = self.replicas.both().map(|replica| &replica.api);
        join_all((0..50).map(|number| apis[number % 2].send_as(bearer, "POST", path, body.clone()))).await
    }
}

/// All feedback of a service has the same score, so the trust score is the same in whichever order the replicas process it.
#[tokio::test]
async fn feedback_of_known_and_unknown_services_at_two_replicas_is_exact() {
    let fleet = Fleet::start().await;
    let [first, second] = fleet.replicas.both();
    let agent = FleetAgent::register(first).await;
    let service_of =
        async |owner: &str| first.create_service_of(&first.mint_human(owner), json!({ "name": owner })).await;
    let (friend, friend_key) = service_of("friend").await;
    let (_, stranger_key) = service_of("stranger").await;
    agent.login_for(second, &friend).await.expect(200);
    let [best, worst] = [100, 0].map(|score| json!({ "agentId": agent.id, "score": score }));
    let (friends, strangers) = tokio::join!(
        fleet.fifty_at_once("/trust/feedback", &friend_key, &best),
        fleet.fifty_at_once("/trust/feedback", &stranger_key, &worst),
    );
    assert!(friends.iter().chain(&strangers).all(|response| response.status == 200));
    let record = format!("/services/{friend}/agents/{}", agent.id);
    let record = second.api.get_as(&friend_key, &record).await.expect(200);
    // The initial score weighs 4, the stranger 1, and the friend (a service that the agent has used) at most 5, their sum.
    assert_eq!(record["trustScore"], json!(70), "(4 * 50 + 1 * 0 + 5 * 100) / 10");
}

/// An assignment races with the owner who leaves the service: afterwards, the agent has no role, whichever comes first.
#[tokio::test]
async fn role_that_is_assigned_while_the_owner_leaves_does_not_remain() {
    let fleet = Fleet::start().await;
    let [first, second] = fleet.replicas.both();
    let role = first.create_role("member", &["read"]).await;
    for _ in 0..20 {
        let agent = FleetAgent::register(first).await;
        let assign = first.path(&format!("/agents/{}/roles", agent.id));
        let admission = format!("/agents/{}/services/{}", agent.id, first.service());
        let (assigned, left) = tokio::join!(
            first.api.send_as(first.key(), "POST", &assign, json!({ "roleId": role })),
            second.api.send_as(second.human(), "PUT", &admission, json!({ "mayAssignRoles": false })),
        );
        let ended = left.expect(200)["revokedRoles"].as_u64().unwrap();
        assert_eq!(ended, u64::from(assigned.status == 200), "{assigned:?}");
        let services = second.api.get_as(second.human(), &format!("/agents/{}/services", agent.id)).await.expect(200);
        assert_eq!(services["data"][0]["roles"], json!([]));
    }
}

/// The other replica refuses the service without any delay, because both read the same database.
#[tokio::test]
async fn service_that_is_deleted_at_one_replica_is_refused_at_the_other_at_once() {
    let fleet = Fleet::start().await;
    let [first, second] = fleet.replicas.both();
    for _ in 0..10 {
        let agent = FleetAgent::register(first).await;
        let (service, key) = first.create_service_of(&fleet.humans[0], json!({ "name": "short-lived" })).await;
        let tokens = agent.login_for(second, &service).await.expect(200);
        let access = text(&tokens["accessToken"]);
        second.verify_at(&service, &key, &access).await.expect(200);
        // Logins at the other replica race with the deletion.
        let path = format!("/services/{service}");
        let delete = first.api.delete_as(&fleet.humans[0], &path);
        let (deleted, raced) = tokio::join!(delete, agent.login_for(second, &service));
        deleted.expect(200);
        assert!([200, 404].contains(&raced.status), "{raced:?}");
        assert_eq!(second.verify_at(&service, &key, &access).await.error().2, "service_key_invalid");
        assert_eq!(agent.login_for(second, &service).await.error().1, "SERVICE_NOT_FOUND");
        let raced = (raced.status == 200).then(|| text(&raced.body["refreshToken"]));
        for refresh in [Some(text(&tokens["refreshToken"])), raced].into_iter().flatten() {
            let refused = second.api.post("/auth/refresh", json!({ "refreshToken": refresh })).await;
            assert_eq!(refused.error().2, "refresh_revoked", "{refused:?}");
        }
    }
    let verified = first.command(&["audit", "verify"]);
    assert!(verified.status.success(), "{verified:?}");
}

/// The requests of the earlier owner are authorized before the transfer, but must wait until it is committed. None of them may
/// change anything after the transfer.
#[tokio::test]
async fn requests_of_the_earlier_owner_change_nothing_after_the_transfer() {
    let fleet = Fleet::start().await;
    let [first, second] = fleet.replicas.both();
    let (alice, bob) = (&fleet.humans, first.mint_human("bob"));
    let administrator = second.human();
    for _ in 0..10 {
        let (service, key) = first.create_service_of(&alice[0], json!({ "name": "to be transferred" })).await;
        let path = format!("/services/{service}");
        let offer = json!({ "subject": "bob" });
        first.api.send_as(&alice[0], "PUT", &format!("{path}/transfer"), offer).await.expect(200);
        let accept = first.api.request("POST", &format!("{path}/transfer/accept")).bearer_auth(&bob);
        let (webhooks, keys) = (format!("{path}/webhooks"), format!("{path}/keys"));
        let new_key = || json!({ "name": "of the earlier owner", "scope": "full" });
        let webhook = json!({ "url": "http://127.0.0.1:65000/", "events": ["agent.role_assigned"] });
        let created = second.api.send_as(&alice[1], "POST", &keys, new_key()).await.expect(201);
        let created = format!("{keys}/{}", text(&created["keyId"]));
        let (accepted, webhook, ..) = tokio::join!(
            HttpResponse::send(accept),
            second.api.send_as(&alice[1], "POST", &webhooks, webhook),
            second.api.send_as(&alice[1], "POST", &keys, new_key()),
            first.api.send_as(&alice[0], "POST", &keys, new_key()),
            second.api.send_as(&alice[1], "PATCH", &path, json!({ "name": "renamed" })),
            first.api.send_as(&alice[0], "POST", &keys, new_key()),
            second.api.delete_as(&alice[1], &created),
        );
        accepted.expect(200);
        assert!([201, 403].contains(&webhook.status), "{webhook:?}");
        let entries = second.api.get_as(administrator, &format!("/audit?serviceId={service}")).await.expect(200);
        let entries = entries["data"].as_array().unwrap();
        // The list has the order in which the transactions began. The sequence has the order of the commits, so it shows the last
        // entry.
        let last = entries.iter().max_by_key(|entry| entry["sequence"].as_i64()).unwrap();
        assert_eq!(last["action"], "service.transferred", "{entries:?}");
        second.api.get_as(&key, &format!("{path}/roles")).await.expect(200);
    }
}

/// A refresh issues a token for a service while another replica revokes the session. Whichever comes first, the sidecar refuses the
/// token.
#[tokio::test]
async fn token_of_a_refresh_while_its_session_is_revoked_is_refused() {
    let fleet = Fleet::start().await;
    let [first, second] = fleet.replicas.both();
    let role = first.create_role("member", &["read"]).await;
    // The service must refuse unbound tokens. Then the sidecar receives the end of the session only because of the token for this
    // service.
    let refuse_unbound = json!({ "acceptsUnboundTokens": false });
    first.api.send_as(first.human(), "PATCH", &first.path(""), refuse_unbound).await.expect(200);
    let sidecar = Sidecar::start(first).await;
    let mut refreshed_count = 0;
    for _ in 0..40 {
        let agent = FleetAgent::register(first).await;
        let unbound = agent.login(first).await;
        first.assign(&agent.id, &role).await;
        let token = &unbound["refreshToken"];
        let (refreshed, revoked) = tokio::join!(
            first.api.post("/auth/refresh", json!({ "refreshToken": token })),
            second.api.post("/auth/revoke", json!({ "token": token })),
        );
        revoked.expect(200);
        if refreshed.status == 200 {
            refreshed_count += 1;
            let access = text(&refreshed.body["accessToken"]);
            sidecar.wait_for_check(&access, |result| result.reason == "token_revoked").await;
        }
    }
    assert!(refreshed_count > 0, "each revocation came before the refresh");
}
