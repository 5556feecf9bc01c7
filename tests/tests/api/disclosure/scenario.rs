//! A deployment with several owners, whose agents and services have done everything that leaves a trace.
//!
//! Every value that a party could learn is unique in the deployment, so that it can be found in what the party received.

mod actions;

use self::actions::{delete_agent, feedback_of, log_in, log_in_and_fail, rate};
use countersign_client::PrivateKey;
use countersign_tests::{
    Agent, ControlPlane, HttpClient, Receiver, Reply, Target, Tenant, agent::registration, control_plane::text,
};
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

/// Tokens of people who own no service.
pub struct Humans {
    pub agent_owner: String,
    pub stranger: String,
}

/// The agents of [`AGENT_OWNER`].
pub struct Agents {
    /// Uses the service and another service.
    pub regular: Agent,
    /// Used the service, and is suspended.
    pub suspended: Agent,
    /// Has an unbound token, and never met a service.
    pub unbound: Agent,
    /// Uses another service only.
    pub elsewhere: Agent,
    /// Used the service, and is deleted.
    pub deleted: Agent,
}

pub struct Services {
    /// The service that the columns of the table are about.
    pub home: Tenant,
    /// The id of a second service of the same owner.
    pub second: String,
    /// A service of another owner that the regular agent uses too.
    pub other: Tenant,
    /// A service of another owner that no agent uses.
    pub unknown: Tenant,
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
    /// The token of the regular agent for the service.
    pub home: String,
    /// The token of the regular agent for another service.
    pub other: String,
    pub unbound: String,
    pub elsewhere: String,
    pub suspended: String,
    /// A revoked token of the regular agent for the service.
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
        let humans =
            Humans { agent_owner: control.mint_human(AGENT_OWNER), stranger: control.mint_human("owner-of-nothing") };
        let services = create_services(&control).await;
        let agents = register_agents(&control, &humans).await;
        let webhooks = create_webhooks(&control, &services).await;
        assign_roles(&services, &agents).await;
        // The first logins make the agents known to the services, whose feedback then has its full weight in the trust scores.
        log_in(&control, address::LOGIN, &agents.regular, Some(&services.home.service)).await;
        log_in(&control, address::OTHER_LOGIN, &agents.regular, Some(&services.other.service)).await;
        log_in(&control, address::OTHER_LOGIN, &agents.elsewhere, Some(&services.other.service)).await;
        log_in(&control, address::UNBOUND_LOGIN, &agents.unbound, None).await;
        rate(&control, &services.other, &agents.regular, 73.19, OTHER_REASON).await;
        let trust = Trust {
            elsewhere: rate(&control, &services.other, &agents.elsewhere, 71.23, OTHER_REASON).await,
            unbound: rate(&control, &services.other, &agents.unbound, 61.37, OTHER_REASON).await,
            regular: rate(&control, &services.home, &agents.regular, 66.43, REASON).await,
        };
        let feedback = feedback_of(&control, &services.home, &services.home.service, &agents.regular).await;
        let other_feedback = feedback_of(&control, &services.home, &services.other.service, &agents.regular).await;
        let tokens = log_in_and_fail(&control, &humans, &services, &agents).await;
        delete_agent(&control, &humans, &services, &agents.deleted).await;
        let offer = json!({ "subject": OFFER_RECEIVER });
        control.api.send_as(&services.home.human, "PUT", &services.home.path("/transfer"), offer).await.expect(200);
        let change = json!({ "name": "role-of-an-administrator", "permissions": ["read"] });
        let administrator = client_at(&control, address::ADMINISTRATOR);
        administrator.send_as(control.human(), "POST", &services.home.path("/roles"), change).await.expect(201);
        let mut lonely = registration(&PrivateKey::generate(), LONELY_AGENT);
        lonely["email"] = EMAIL.into();
        let client = client_at(&control, address::REGISTRATION);
        client.send_as(&humans.agent_owner, "POST", "/auth/register", lonely).await.expect(201);
        for (receiver, target) in [&webhooks.home, &webhooks.unknown, &webhooks.deployment] {
            let event = target.send_test_event().await;
            receiver.wait_for_event(&event).await;
            target.wait_until_count("pending", 0).await;
        }
        Self { control, humans, agents, services, webhooks, tokens, trust, feedback, other_feedback }
    }

    /// The detail record of the regular agent.
    pub async fn record(&self) -> Value {
        self.services.home.get(&format!("/agents/{}", self.agents.regular.id)).await.expect(200)
    }

    /// The ids of all agents except the agent that has met no service.
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

async fn create_services(control: &ControlPlane) -> Services {
    let home = Tenant::named(control, SERVICE_OWNER, SERVICE_NAME).await;
    let (second, _) = control.create_service_of(&home.human, json!({ "name": SECOND_SERVICE })).await;
    let other = Tenant::named(control, "owner-of-another-service", OTHER_SERVICE).await;
    control.create_service_of(&other.human, json!({ "name": UNRELATED_SERVICE })).await;
    let unknown = Tenant::named(control, "owner-of-an-unknown-service", "unknown-service").await;
    let body = json!({ "name": KEY_NAME, "scope": "sync" });
    let created = control.api.send_as(&home.human, "POST", &home.path("/keys"), body).await.expect(201);
    Services { home, second, other, unknown, sync_key: text(&created["apiKey"]) }
}

async fn register_agents(control: &ControlPlane, humans: &Humans) -> Agents {
    let register = async |name: &str| {
        let about = if name == AGENT_NAME { METADATA } else { name };
        let fields = json!({ "email": EMAIL, "metadata": { "about": about } });
        Agent::register_with(control, &humans.agent_owner, name, fields).await
    };
    Agents {
        regular: register(AGENT_NAME).await,
        suspended: register("suspended-agent").await,
        unbound: register("agent-with-an-unbound-token").await,
        elsewhere: register("agent-of-another-service").await,
        deleted: register(DELETED_AGENT).await,
    }
}

async fn create_webhooks(control: &ControlPlane, services: &Services) -> Webhooks {
    let start = || Receiver::start(Reply::Full(200, Vec::new(), RECEIVER_ANSWER.to_owned()));
    let (home, unknown, deployment) = (start().await, Receiver::start_ok().await, Receiver::start_ok().await);
    let home_target = services.home.create_target(&home.url, &["*"]).await;
    let unknown_target = services.unknown.create_target(&unknown.url, &["*"]).await;
    let deployment_target = Target::create_for_deployment(control, &deployment.url).await;
    Webhooks {
        home: (home, home_target),
        unknown: (unknown, unknown_target),
        deployment: (deployment, deployment_target),
    }
}

async fn assign_roles(services: &Services, agents: &Agents) {
    services.home.assign_new_role(&agents.regular.id, ROLE, &["read"]).await;
    services.other.assign_new_role(&agents.regular.id, OTHER_ROLE, &["read"]).await;
    let unassigned = json!({ "name": UNASSIGNED_ROLE, "permissions": [PERMISSION] });
    services.home.send("POST", "/roles", unassigned).await.expect(201);
}
