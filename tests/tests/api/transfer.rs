//! Transfer of a service from its owner to another person.

use countersign_tests::{
    Agent, ControlPlane, HttpResponse, Issuer, ManualClock, SigningKey, Tenant, control_plane::text, http::texts,
};
use serde_json::{Value, json};
use std::time::Duration;

/// A service of alice, which she offers to bob.
struct Offered {
    control: ControlPlane,
    tenant: Tenant,
    bob: String,
}

impl Offered {
    async fn new(settings: &[&str]) -> Self {
        let control = ControlPlane::start_with(settings).await;
        let (tenant, bob) = (Tenant::new(&control, "alice").await, control.mint_human("bob"));
        let offered = Self { control, tenant, bob };
        offered.offer("bob").await.expect(200);
        offered
    }

    fn path(&self) -> String {
        self.tenant.path("/transfer")
    }

    async fn offer(&self, subject: &str) -> HttpResponse {
        self.control.api.send_as(&self.tenant.human, "PUT", &self.path(), json!({ "subject": subject })).await
    }

    async fn accept(&self, human: &str) -> HttpResponse {
        accept(&self.control, human, &self.path()).await
    }

    async fn owns(&self, human: &str) -> bool {
        self.control.api.get_as(human, &self.tenant.path("")).await.status == 200
    }

    async fn offers_to(&self, human: &str) -> Value {
        self.control.api.get_as(human, "/transfers").await.expect(200)["data"].clone()
    }
}

async fn accept(control: &ControlPlane, human: &str, offer: &str) -> HttpResponse {
    control.api.send_as(human, "POST", &format!("{offer}/accept"), json!({})).await
}

#[tokio::test]
async fn receiver_of_an_offer_becomes_the_owner_and_the_service_continues() {
    let offered = Offered::new(&[]).await;
    let Offered { control, tenant: Tenant { human: alice, service, key, .. }, bob } = &offered;
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
    let expected = ["service.transferred", "service.transfer_offered", "service_key.created", "service.created"];
    assert_eq!(texts(&entries, "action"), expected);
    let [from, to] = ["alice", "bob"].map(|id| json!({ "issuer": "urn:countersign:operator", "id": id }));
    assert_eq!(entries["data"][0]["details"], json!({ "from": from, "to": to }));
    control.assert_audit_intact();
}

#[tokio::test]
async fn only_owner_and_receiver_learn_of_an_offer_and_only_the_receiver_accepts() {
    let offered = Offered::new(&[]).await;
    let Offered { control, tenant: Tenant { human: alice, .. }, bob } = &offered;
    let stranger = control.mint_human("mallory");
    for refused in [
        control.api.get_as(&stranger, &offered.path()).await,
        control.api.delete_as(&stranger, &offered.path()).await,
        offered.accept(&stranger).await,
        offered.accept(alice).await,
        offered.accept(control.human()).await,
        control.api.send_as(bob, "PUT", &offered.path(), json!({ "subject": "mallory" })).await,
    ] {
        assert_eq!(refused.reason(), (403, "not_yours"), "{refused:?}");
    }
    let required = |refused: &HttpResponse| refused.body["error"]["details"]["required"]["access"].clone();
    assert_eq!(required(&offered.accept(alice).await), json!(["receiver"]), "the owner does not suffice");
    let read = control.api.get_as(&stranger, &offered.path()).await;
    assert_eq!(required(&read), json!(["owner", "administrator", "receiver"]));
    for human in [alice, bob] {
        let offer = control.api.get_as(human, &offered.path()).await.expect(200);
        assert_eq!(offer["newOwner"]["subject"], "bob");
    }
    let myself = offered.offer("alice").await;
    assert_eq!((myself.status, &myself.body["error"]["details"]["fields"]["subject"].is_string()), (400, &true));

    let withdrawn = control.api.delete_as(alice, &offered.path()).await.expect(200);
    assert_eq!(withdrawn, json!({ "withdrawn": true, "declined": false }));
    assert_eq!(control.api.delete_as(alice, &offered.path()).await.error().1, "NOT_FOUND");
    assert_eq!(offered.accept(bob).await.error().2, "not_yours");
    offered.offer("bob").await.expect(200);
    let declined = control.api.delete_as(bob, &offered.path()).await.expect(200);
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
        assert_eq!(refused.code(), (400, "VALIDATION_ERROR"), "{refused:?}");
        assert!([&first.url, &second.url].iter().all(|issuer| problem.contains(issuer.as_str())), "{problem}");
    }
    offer(&second.url).await.expect(200);
    let refused = accept(&control, &other_bob, &path).await;
    assert_eq!(refused.error().2, "not_yours", "the person of another issuer is another person");
    accept(&control, &bob, &path).await.expect(200);
}

#[tokio::test]
async fn transfer_counts_for_the_quotas_of_both_persons() {
    let offered = Offered::new(&["quotas.services_per_person=1"]).await;
    let Offered { control, tenant: Tenant { human: alice, .. }, bob } = &offered;
    let create =
        async |human: &str| control.api.send_as(human, "POST", "/services", json!({ "name": "another" })).await;
    let others = text(&create(bob).await.expect(201)["serviceId"]);
    let refused = offered.accept(bob).await;
    assert_eq!(refused.reason(), (409, "quota_exceeded"), "{refused:?}");
    assert_eq!(create(alice).await.status, 409);
    let (carol, transfer) = (control.mint_human("carol"), format!("/services/{others}/transfer"));
    control.api.send_as(bob, "PUT", &transfer, json!({ "subject": "carol" })).await.expect(200);
    accept(control, &carol, &transfer).await.expect(200);
    offered.accept(bob).await.expect(200);
    create(alice).await.expect(201);
    assert_eq!(create(bob).await.status, 409);
}

/// In a trust score, all services of one owner weigh at most as much as the initial score and the services of all other owners.
#[tokio::test]
async fn feedback_of_a_transferred_service_counts_for_its_new_owner() {
    let offered = Offered::new(&[]).await;
    let Offered { control, tenant: Tenant { service, key, .. }, bob } = &offered;
    let agent = Agent::register_as(control, bob, "of bob").await;
    // The initial score weighs 4, and all services that the agent has not used weigh 1 together.
    let before = control.rate(key, &agent.id, 100).await;
    assert!((before - 60.0).abs() < 0.01, "{before}");
    offered.accept(bob).await.expect(200);
    let after = control.rate(key, &agent.id, 100).await;
    assert!((after - 50.0).abs() < 0.01, "feedback of the owner of the agent weighs nothing: {service} {after}");
}

#[tokio::test]
async fn offer_expires_after_seven_days_and_ends_with_its_service() {
    let clock = ManualClock::new();
    let control = ControlPlane::start_with_clock(&clock, &[]).await;
    let (human, path) = (control.human(), control.path("/transfer"));
    let offer = async || control.api.send_as(human, "PUT", &path, json!({ "subject": "bob" })).await;
    let status = async || control.api.get_as(human, &path).await.status;
    offer().await.expect(200);
    clock.advance(Duration::from_hours(7 * 24) - Duration::from_secs(1));
    assert_eq!(status().await, 200);
    clock.advance(Duration::from_secs(1));
    assert_eq!(status().await, 404);
    offer().await.expect(200);
    control.api.delete_as(human, &control.path("")).await.expect(200);
    assert_eq!(status().await, 404);
}
