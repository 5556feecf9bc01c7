//! Transfer of a service from its owner to another person.

use countersign_tests::{
    Agent, ControlPlane, HttpResponse, InProcessServer, Issuer, ManualClock, SigningKey, control_plane::text,
};
use serde_json::{Value, json};
use std::time::Duration;

/// A service of alice, which she offers to bob.
struct Offered {
    control: ControlPlane,
    alice: String,
    bob: String,
    service: String,
    key: String,
}

impl Offered {
    async fn new(settings: &[&str]) -> Self {
        let control = ControlPlane::start_with(settings).await;
        let [alice, bob] = ["alice", "bob"].map(|person| control.mint_human(person));
        let (service, key) = control.create_service_of(&alice, json!({ "name": "a service" })).await;
        let offered = Self { control, alice, bob, service, key };
        offered.offer("bob").await.expect(200);
        offered
    }

    fn path(&self) -> String {
        format!("/services/{}/transfer", self.service)
    }

    async fn offer(&self, subject: &str) -> HttpResponse {
        self.control.api.send_as(&self.alice, "PUT", &self.path(), json!({ "subject": subject })).await
    }

    async fn accept(&self, human: &str) -> HttpResponse {
        send(&self.control, human, "POST", &format!("{}/accept", self.path())).await
    }

    async fn owns(&self, human: &str) -> bool {
        self.control.api.get_as(human, &format!("/services/{}", self.service)).await.status == 200
    }

    async fn offers_to(&self, human: &str) -> Value {
        self.control.api.get_as(human, "/transfers").await.expect(200)["data"].clone()
    }
}

async fn send(control: &ControlPlane, human: &str, method: &str, path: &str) -> HttpResponse {
    HttpResponse::send(control.api.request(method, path).bearer_auth(human)).await
}

#[tokio::test]
async fn receiver_of_an_offer_becomes_the_owner_and_the_service_continues() {
    let offered = Offered::new(&[]).await;
    let Offered { control, alice, bob, service, key } = &offered;
    let agent = Agent::register(control, "Agent").await;
    let token = agent.token_for(service).await;
    let offers = offered.offers_to(bob).await;
    assert_eq!((&offers[0]["serviceId"], &offers[0]["name"]), (&json!(service), &json!("a service")));
    let receiver = json!({ "issuer": "urn:countersign:operator", "subject": "bob" });
    assert_eq!(offers[0]["newOwner"], receiver);
    let owner = json!({ "issuer": "urn:countersign:operator", "subject": "alice" });
    assert_eq!(offers[0]["offeredBy"], owner);
    assert_eq!(control.api.get_as(alice, &format!("/services/{service}")).await.expect(200)["owner"], owner);
    assert!(offered.owns(alice).await && !offered.owns(bob).await, "an offer changes nothing");

    assert_eq!(offered.accept(bob).await.expect(200)["serviceId"], json!(service));
    assert!(!offered.owns(alice).await && offered.owns(bob).await);
    assert_eq!(offered.offers_to(bob).await, json!([]));
    assert_eq!(offered.accept(bob).await.error().1, "NOT_FOUND");
    control.verify_at(service, key, &token).await.expect(200);
    let entries = control.api.get_as(bob, &format!("/audit?serviceId={service}")).await.expect(200);
    let actions: Vec<_> = entries["data"].as_array().unwrap().iter().map(|entry| text(&entry["action"])).collect();
    let expected = ["service.transferred", "service.transfer_offered", "service_key.created", "service.created"];
    assert_eq!(actions, expected);
    let [from, to] = ["alice", "bob"].map(|id| json!({ "issuer": "urn:countersign:operator", "id": id }));
    assert_eq!(entries["data"][0]["details"], json!({ "from": from, "to": to }));
    let verified = control.command(&["audit", "verify"]);
    assert!(verified.status.success(), "{verified:?}");
}

#[tokio::test]
async fn only_owner_and_receiver_learn_of_an_offer_and_only_the_receiver_accepts() {
    let offered = Offered::new(&[]).await;
    let Offered { control, alice, bob, .. } = &offered;
    let stranger = control.mint_human("mallory");
    for refused in [
        send(control, &stranger, "GET", &offered.path()).await,
        send(control, &stranger, "DELETE", &offered.path()).await,
        offered.accept(&stranger).await,
        offered.accept(alice).await,
        offered.accept(control.human()).await,
        control.api.send_as(bob, "PUT", &offered.path(), json!({ "subject": "mallory" })).await,
    ] {
        assert_eq!((refused.status, refused.error().2), (403, "not_yours"), "{refused:?}");
    }
    let required = |refused: &HttpResponse| refused.body["error"]["details"]["required"]["access"].clone();
    assert_eq!(required(&offered.accept(alice).await), json!(["receiver"]), "the owner does not suffice");
    let read = send(control, &stranger, "GET", &offered.path()).await;
    assert_eq!(required(&read), json!(["owner", "administrator", "receiver"]));
    for human in [alice, bob] {
        let offer = control.api.get_as(human, &offered.path()).await.expect(200);
        assert_eq!(offer["newOwner"]["subject"], "bob");
    }
    let myself = offered.offer("alice").await;
    assert_eq!((myself.status, &myself.body["error"]["details"]["fields"]["subject"].is_string()), (400, &true));

    let withdrawn = send(control, alice, "DELETE", &offered.path()).await.expect(200);
    assert_eq!(withdrawn, json!({ "withdrawn": true, "declined": false }));
    assert_eq!(send(control, alice, "DELETE", &offered.path()).await.error().1, "NOT_FOUND");
    assert_eq!(offered.accept(bob).await.error().2, "not_yours");
    offered.offer("bob").await.expect(200);
    let declined = send(control, bob, "DELETE", &offered.path()).await.expect(200);
    assert_eq!(declined, json!({ "withdrawn": true, "declined": true }));
    assert_eq!(offered.accept(bob).await.error().2, "not_yours", "the receiver has declined");
    assert!(offered.owns(alice).await);
}

/// Nobody could accept an offer to a person whose tokens the control plane does not accept.
#[tokio::test]
async fn offer_names_an_issuer_that_the_control_plane_accepts() {
    let keys = [SigningKey::p256("k1"), SigningKey::p256("k2")];
    let (first, second) = (Issuer::start(&[&keys[0]]).await, Issuer::start(&[&keys[1]]).await);
    let settings = [first.settings("first", &[]), second.settings("second", &[])].concat();
    let control = ControlPlane::start_with(&settings.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let alice = keys[0].token(&first.claims("alice"));
    let [bob, other_bob] = [keys[1].token(&second.claims("bob")), keys[0].token(&first.claims("bob"))];
    let created = control.api.send_as(&alice, "POST", "/services", json!({ "name": "a service" })).await.expect(201);
    let path = format!("/services/{}/transfer", text(&created["serviceId"]));
    let offer = async |issuer: &str| {
        let body = json!({ "subject": "bob", "issuer": issuer });
        control.api.send_as(&alice, "PUT", &path, body).await
    };
    for unknown in ["https://login.example.com", &format!("{}/", second.url)] {
        let refused = offer(unknown).await;
        let problem = refused.text("/error/details/fields/issuer");
        assert_eq!((refused.status, refused.error().1), (400, "VALIDATION_ERROR"), "{refused:?}");
        assert!([&first.url, &second.url].iter().all(|issuer| problem.contains(issuer.as_str())), "{problem}");
    }
    offer(&second.url).await.expect(200);
    let accept = format!("{path}/accept");
    let refused = send(&control, &other_bob, "POST", &accept).await;
    assert_eq!(refused.error().2, "not_yours", "the person of another issuer is another person");
    send(&control, &bob, "POST", &accept).await.expect(200);
}

#[tokio::test]
async fn transfer_counts_for_the_quotas_of_both_persons() {
    let offered = Offered::new(&["quotas.services_per_person=1"]).await;
    let Offered { control, alice, bob, .. } = &offered;
    let create =
        async |human: &str| control.api.send_as(human, "POST", "/services", json!({ "name": "another" })).await;
    let others = text(&create(bob).await.expect(201)["serviceId"]);
    let refused = offered.accept(bob).await;
    assert_eq!((refused.status, refused.error().2), (409, "quota_exceeded"), "{refused:?}");
    assert_eq!(create(alice).await.status, 409);
    let (carol, transfer) = (control.mint_human("carol"), format!("/services/{others}/transfer"));
    control.api.send_as(bob, "PUT", &transfer, json!({ "subject": "carol" })).await.expect(200);
    send(control, &carol, "POST", &format!("{transfer}/accept")).await.expect(200);
    offered.accept(bob).await.expect(200);
    create(alice).await.expect(201);
    assert_eq!(create(bob).await.status, 409);
}

/// The services of one owner weigh at most as much as the prior and all other owners.
#[tokio::test]
async fn feedback_of_a_transferred_service_counts_for_its_new_owner() {
    let offered = Offered::new(&[]).await;
    let Offered { control, bob, key, service, .. } = &offered;
    let agent = Agent::register(control, "public").await;
    let pem = agent.key.public_pem().unwrap();
    let body = json!({ "email": "bob@example.org", "name": "of bob", "publicKey": pem });
    let id = text(&control.api.send_as(bob, "POST", "/auth/register", body).await.expect(201)["agentId"]);
    let rate = async |key: &str| {
        let body = json!({ "agentId": id, "score": 100 });
        control.api.send_as(key, "POST", "/trust/feedback", body).await.expect(200)["newTrustScore"].clone()
    };
    // The prior weighs 4, and services that the agent does not know together 1.
    assert_eq!(rate(key).await, json!(60));
    offered.accept(bob).await.expect(200);
    assert_eq!(rate(key).await, json!(50), "feedback of the owner of the agent weighs nothing: {service}");
}

#[tokio::test]
async fn offer_expires_after_seven_days_and_ends_with_its_service() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), ManualClock::new());
    let server = InProcessServer::start(folder.path(), &[], &clock).await;
    let env = |name| InProcessServer::env(folder.path(), name);
    let (human, service) = (env("HUMAN_TOKEN"), env("SERVICE_ID"));
    let path = format!("/services/{service}/transfer");
    let offer = async || server.api.send_as(&human, "PUT", &path, json!({ "subject": "bob" })).await;
    offer().await.expect(200);
    clock.advance(Duration::from_hours(7 * 24) - Duration::from_secs(1));
    let day = Duration::from_hours(24);
    let is_offered = async || server.api.get_as(&human, &path).await.status;
    assert_eq!(is_offered().await, 200);
    clock.advance(Duration::from_secs(1));
    assert_eq!(is_offered().await, 404);
    offer().await.expect(200);
    clock.advance(day);
    assert_eq!(is_offered().await, 200);
    HttpResponse::send(server.api.request("DELETE", &format!("/services/{service}")).bearer_auth(&human))
        .await
        .expect(200);
    assert_eq!(is_offered().await, 404);
    server.server.stop().await;
}
