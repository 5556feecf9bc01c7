//! A deployment with several owners, whose agents and services have done everything that leaves a trace.
//!
//! Every value that a party could learn is unique in the deployment, so that it can be found in what the party received.

mod actions;

use self::actions::{delete_agent, feedback_of, log_in, log_in_and_fail, rate};
use countersign_client::PrivateKey;
use countersign_tests::{ControlPlane, HttpClient, Receiver, Reply, Target, control_plane::text};
use serde_json::{Value, json};
use std::net::Ipv4Addr;

pub const EMAIL: &str = "registrant@agents.example";
pub const AGENT_OWNER: &str = "owner-of-the-agents";
pub const SERVICE_OWNER: &str = "owner-of-the-service";
pub const AGENT_NAME: &str = "name-of-the-agent";
pub const METADATA: &str = "metadata-of-the-agent";
pub const LONELY_AGENT: &str = "agent-that-met-nobody";
pub const SERVICE_NAME: &str = "name-of-the-service";
pub const DELETED_AGENT: &str = "name-of-a-deleted-agent";
pub const OFFER_RECEIVER: &str = "receiver-of-an-offer";
pub const SECOND_SERVICE: &str = "second-service-of-the-owner";
pub const OTHER_SERVICE: &str = "name-of-another-service";
pub const UNRELATED_SERVICE: &str = "service-without-agents";
pub const ROLE: &str = "role-at-the-service";
pub const UNASSIGNED_ROLE: &str = "role-without-agents";
pub const PERMISSION: &str = "permission-without-agents";
pub const OTHER_ROLE: &str = "role-at-another-service";
pub const KEY_NAME: &str = "name-of-an-api-key";
pub const REASON: &str = "reason-of-the-service";
pub const OTHER_REASON: &str = "reason-of-another-service";
pub const RECEIVER_ANSWER: &str = "answer-of-the-receiver";

/// The last numbers of the client addresses `127.0.0.x`.
pub mod address {
    pub const LOGIN: u8 = 11;
    pub const OTHER_LOGIN: u8 = 12;
    pub const UNBOUND_LOGIN: u8 = 13;
    pub const FAILED_LOGIN: u8 = 14;
    pub const FAILED_LOGIN_AT_UNKNOWN: u8 = 15;
    pub const ADMINISTRATOR: u8 = 21;
    pub const REGISTRATION: u8 = 22;
}

/// An agent of [`AGENT_OWNER`].
pub struct OwnedAgent {
    pub id: String,
    pub public_key_hash: String,
    pub key: PrivateKey,
}

/// A service and its API key of scope `full`.
pub struct Service {
    pub id: String,
    pub key: String,
}

/// The owners, by their tokens.
pub struct Humans {
    pub agent_owner: String,
    pub service_owner: String,
    pub other_owner: String,
    pub stranger: String,
}

/// The agents.
pub struct Agents {
    /// Uses the service and another service.
    pub regular: OwnedAgent,
    /// Used the service, and is suspended.
    pub suspended: OwnedAgent,
    /// Has an unbound token, and never met a service.
    pub unbound: OwnedAgent,
    /// Uses another service only.
    pub elsewhere: OwnedAgent,
    /// Used the service, and is deleted.
    pub deleted: OwnedAgent,
}

/// The services.
pub struct Services {
    /// The service that the columns of the table are about.
    pub home: Service,
    /// The id of a second service of the same owner.
    pub second: String,
    /// A service of another owner that the regular agent uses too.
    pub other: Service,
    /// A service of another owner that no agent uses.
    pub unknown: Service,
    /// An API key of scope `sync` of the first service.
    pub sync_key: String,
}

/// Webhook targets and their receivers.
pub struct Webhooks {
    pub home: (Receiver, Target),
    pub unknown: (Receiver, Target),
    pub deployment: (Receiver, Target),
}

/// Access tokens of the agents.
pub struct Tokens {
    /// Of the regular agent, for the service.
    pub home: String,
    /// Of the regular agent, for another service.
    pub other: String,
    pub unbound: String,
    pub elsewhere: String,
    pub suspended: String,
    /// Of the regular agent, for the service, and revoked.
    pub revoked: String,
}

/// Trust scores, which differ between the agents.
pub struct Trust {
    pub regular: f64,
    pub unbound: f64,
    pub elsewhere: f64,
}

/// Everything that the tests know about the deployment.
pub struct Scenario {
    pub control: ControlPlane,
    pub humans: Humans,
    pub agents: Agents,
    pub services: Services,
    pub webhooks: Webhooks,
    pub tokens: Tokens,
    pub trust: Trust,
    pub feedback: String,
    pub other_feedback: String,
}

/// An HTTP client with another address.
pub fn client_at(control: &ControlPlane, last: u8) -> HttpClient {
    control.client_at(Ipv4Addr::new(127, 0, 0, last))
}

impl Scenario {
    pub async fn new() -> Self {
        let control = ControlPlane::start().await;
        let humans = Humans {
            agent_owner: control.mint_human(AGENT_OWNER),
            service_owner: control.mint_human(SERVICE_OWNER),
            other_owner: control.mint_human("owner-of-another-service"),
            stranger: control.mint_human("owner-of-nothing"),
        };
        let services = create_services(&control, &humans).await;
        let agents = register_agents(&control, &humans).await;
        let webhooks = create_webhooks(&control, &services).await;
        assign_roles(&control, &services, &agents).await;
        // The first logins make the agents known to the services, which then weigh fully in the trust scores.
        log_in(&control, address::LOGIN, &agents.regular, Some(&services.home.id)).await;
        log_in(&control, address::OTHER_LOGIN, &agents.regular, Some(&services.other.id)).await;
        log_in(&control, address::OTHER_LOGIN, &agents.elsewhere, Some(&services.other.id)).await;
        log_in(&control, address::UNBOUND_LOGIN, &agents.unbound, None).await;
        rate(&control, &services.other, &agents.regular, 73.19, OTHER_REASON).await;
        let trust = Trust {
            elsewhere: rate(&control, &services.other, &agents.elsewhere, 71.23, OTHER_REASON).await,
            unbound: rate(&control, &services.other, &agents.unbound, 61.37, OTHER_REASON).await,
            regular: rate(&control, &services.home, &agents.regular, 66.43, REASON).await,
        };
        let feedback = feedback_of(&control, &services.home, &services.home.id, &agents.regular).await;
        let other_feedback = feedback_of(&control, &services.home, &services.other.id, &agents.regular).await;
        let tokens = log_in_and_fail(&control, &humans, &services, &agents).await;
        delete_agent(&control, &humans, &services, &agents.deleted).await;
        let offer = json!({ "subject": OFFER_RECEIVER });
        let path = format!("/services/{}/transfer", services.home.id);
        control.api.send_as(&humans.service_owner, "PUT", &path, offer).await.expect(200);
        let change = json!({ "name": "role-of-an-administrator", "permissions": ["read"] });
        let path = format!("/services/{}/roles", services.home.id);
        let administrator = client_at(&control, address::ADMINISTRATOR);
        administrator.send_as(control.human(), "POST", &path, change).await.expect(201);
        let registration = client_at(&control, address::REGISTRATION);
        register(&registration, &humans.agent_owner, LONELY_AGENT).await;
        for (receiver, target) in [&webhooks.home, &webhooks.unknown, &webhooks.deployment] {
            let event = target.send_test_event().await;
            receiver.wait_for_event(&event).await;
            let pending = async || (target.count_deliveries("pending").await == 0).then_some(());
            countersign_tests::eventually("all events are delivered", pending, String::new).await;
        }
        Self { control, humans, agents, services, webhooks, tokens, trust, feedback, other_feedback }
    }

    /// The detail record of the regular agent.
    pub async fn record(&self) -> Value {
        let path = format!("/services/{}/agents/{}", self.services.home.id, self.agents.regular.id);
        self.control.api.get_as(&self.services.home.key, &path).await.expect(200)
    }

    /// The ids of all agents except the one that met nobody.
    pub fn agent_ids(&self) -> String {
        let Agents { regular, suspended, unbound, elsewhere, deleted } = &self.agents;
        [regular, suspended, unbound, elsewhere, deleted].map(|agent| agent.id.as_str()).join(" ")
    }

    /// The first line of the PEM of the regular agent's public key. JSON escapes the end of the line.
    pub fn public_key(&self) -> String {
        self.agents.regular.key.public_pem().unwrap().lines().nth(1).unwrap().to_owned()
    }

    /// What an agent knows of itself: hash of its key, addresses and time of its logins.
    pub async fn known_to_the_agent(&self) -> String {
        let record = self.record().await;
        let addresses = [
            address::LOGIN,
            address::OTHER_LOGIN,
            address::UNBOUND_LOGIN,
            address::FAILED_LOGIN,
            address::FAILED_LOGIN_AT_UNKNOWN,
        ];
        let addresses = addresses.map(|last| format!("\"127.0.0.{last}\"")).join(" ");
        format!("{} {} {} {addresses}", self.public_key(), record["publicKeyHash"], record["lastSeenAt"])
    }
}

async fn create_services(control: &ControlPlane, humans: &Humans) -> Services {
    let create = async |owner: &str, name: &str| {
        let (id, key) = control.create_service_of(owner, json!({ "name": name })).await;
        Service { id, key }
    };
    let home = create(&humans.service_owner, SERVICE_NAME).await;
    let second = create(&humans.service_owner, SECOND_SERVICE).await.id;
    let other = create(&humans.other_owner, OTHER_SERVICE).await;
    create(&humans.other_owner, UNRELATED_SERVICE).await;
    let unknown = create(&control.mint_human("owner-of-an-unknown-service"), "unknown-service").await;
    let path = format!("/services/{}/keys", home.id);
    let body = json!({ "name": KEY_NAME, "scope": "sync" });
    let created = control.api.send_as(&humans.service_owner, "POST", &path, body).await.expect(201);
    Services { home, second, other, unknown, sync_key: text(&created["apiKey"]) }
}

async fn register_agents(control: &ControlPlane, humans: &Humans) -> Agents {
    let register = |name| register(&control.api, &humans.agent_owner, name);
    Agents {
        regular: register(AGENT_NAME).await,
        suspended: register("suspended-agent").await,
        unbound: register("agent-with-an-unbound-token").await,
        elsewhere: register("agent-of-another-service").await,
        deleted: register(DELETED_AGENT).await,
    }
}

async fn register(client: &HttpClient, owner: &str, name: &str) -> OwnedAgent {
    let key = PrivateKey::generate();
    let (public_key, metadata) = (key.public_pem().unwrap(), if name == AGENT_NAME { METADATA } else { name });
    let body = json!({ "email": EMAIL, "name": name, "publicKey": public_key, "metadata": { "about": metadata } });
    let registered = client.send_as(owner, "POST", "/auth/register", body).await.expect(201);
    OwnedAgent { id: text(&registered["agentId"]), public_key_hash: text(&registered["publicKeyHash"]), key }
}

async fn create_webhooks(control: &ControlPlane, services: &Services) -> Webhooks {
    let start = || Receiver::start(Reply::Full(200, Vec::new(), RECEIVER_ANSWER.to_owned()));
    let (home, unknown, deployment) = (start().await, Receiver::start_ok().await, Receiver::start_ok().await);
    let create = async |service: &Service, receiver: &Receiver| {
        let collection = format!("/services/{}/webhooks", service.id);
        Target::create_in(&control.api, &service.key, &collection, &receiver.url, &["*"]).await
    };
    let (home_target, unknown_target) =
        (create(&services.home, &home).await, create(&services.unknown, &unknown).await);
    let deployment_target = Target::create_for_deployment(control, &deployment.url).await;
    Webhooks {
        home: (home, home_target),
        unknown: (unknown, unknown_target),
        deployment: (deployment, deployment_target),
    }
}

async fn assign_roles(control: &ControlPlane, services: &Services, agents: &Agents) {
    for (service, name, permission, agent) in [
        (&services.home, ROLE, "read", Some(&agents.regular)),
        (&services.home, UNASSIGNED_ROLE, PERMISSION, None),
        (&services.other, OTHER_ROLE, "read", Some(&agents.regular)),
    ] {
        let path = format!("/services/{}", service.id);
        let body = json!({ "name": name, "permissions": [permission] });
        let role = control.api.send_as(&service.key, "POST", &format!("{path}/roles"), body).await.expect(201);
        if let Some(agent) = agent {
            let path = format!("{path}/agents/{}/roles", agent.id);
            let body = json!({ "roleId": role["roleId"] });
            control.api.send_as(&service.key, "POST", &path, body).await.expect(200);
        }
    }
}
