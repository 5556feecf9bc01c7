//! The pieces of information in the tables, and how to find them in what a party received.

use super::{
    observation::Observation,
    scenario::{self, Agents, Scenario, address},
};
use countersign_tests::{control_plane::text, jwt};

/// What a fact reveals. If it reveals an id, responses to a party that already sent this id do not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reveals {
    AgentId,
    ServiceId,
    Other,
}

/// A piece of information.
pub struct Fact {
    /// The first cell of the row about this fact.
    pub row: &'static str,
    /// Texts that contain the information. One of them suffices.
    markers: Vec<String>,
    reveals: Reveals,
}

impl Fact {
    fn new<M: Into<String>>(row: &'static str, markers: impl IntoIterator<Item = M>) -> Self {
        Self { row, markers: markers.into_iter().map(Into::into).collect(), reveals: Reveals::Other }
    }

    fn revealing(self, reveals: Reveals) -> Self {
        Self { reveals, ..self }
    }

    /// What a party learns of this fact, as one of the words that the page explains.
    pub fn word(&self, seen: &Observation) -> &'static str {
        let shows = |text: &str| self.markers.iter().any(|marker| text.contains(marker.as_str()));
        let by_agent_id = self.reveals != Reveals::AgentId && shows(&seen.with_agent_ids);
        let by_any_id = self.reveals == Reveals::Other && shows(&seen.with_all_ids);
        if shows(&seen.alone) {
            "yes"
        } else if shows(&seen.supplied) {
            "own"
        } else if shows(&seen.hashed) {
            "hash"
        } else if by_agent_id || by_any_id {
            "id"
        } else if shows(&seen.with_tokens) {
            "token"
        } else {
            "no"
        }
    }
}

/// All pieces of information of the page.
pub async fn facts(scenario: &Scenario) -> Vec<Fact> {
    let mut facts = about_the_agent(scenario).await;
    facts.extend(about_other_agents(scenario));
    facts.extend(about_logins());
    facts.extend(about_feedback(scenario));
    facts.extend(about_the_service(scenario).await);
    facts.extend(about_the_deployment(scenario).await);
    facts
}

/// Texts that contain a trust score: in a record, a claim or an event, or in a message of a stream.
fn trust_markers(score: f64) -> [String; 2] {
    [format!("rustScore\":{score}"), format!("trust={score}")]
}

/// The text of a client address in an event or an audit entry.
fn address_marker(last: u8) -> [String; 1] {
    [format!("\"127.0.0.{last}\"")]
}

async fn about_the_agent(scenario: &Scenario) -> Vec<Fact> {
    let record = scenario.record().await;
    vec![
        Fact::new("id", [&scenario.agents.regular.id]).revealing(Reveals::AgentId),
        Fact::new("whether an agent with a given id exists", ["challengeId"]),
        Fact::new("name", [scenario::AGENT_NAME]),
        Fact::new("`metadata`", [scenario::METADATA]),
        Fact::new("status", ["\"status\":\"suspended\"", "agent_suspended", "status=Ok(Suspended)"]),
        Fact::new("trust score", trust_markers(scenario.trust.regular)),
        Fact::new("time of registration", [text(&record["createdAt"])]),
        Fact::new("time of the last login or refresh, at any service", [text(&record["lastSeenAt"])]),
        Fact::new("SHA-256 of the public key", [scenario.agents.regular.public_key_hash()]),
        Fact::new("public key", [scenario.public_key()]),
        Fact::new("e-mail address of the registrant", [scenario::EMAIL]),
        Fact::new("owner (issuer and subject)", [scenario::AGENT_OWNER]),
        Fact::new("other agents of the owner", [scenario::LONELY_AGENT]).revealing(Reveals::AgentId),
        Fact::new("roles at the service", [scenario::ROLE]),
        Fact::new("roles at other services", [scenario::OTHER_ROLE]),
        Fact::new("names of the services that gave it roles", [scenario::OTHER_SERVICE]),
        Fact::new("id of a revoked token for the service", [text(&jwt::claims(&scenario.tokens.revoked)["jti"])]),
    ]
}

fn about_other_agents(scenario: &Scenario) -> Vec<Fact> {
    let Agents { unbound, elsewhere, deleted, .. } = &scenario.agents;
    vec![
        Fact::new("id, if the agent only has an unbound token", [&unbound.id]).revealing(Reveals::AgentId),
        Fact::new("trust score, if the agent only has an unbound token", trust_markers(scenario.trust.unbound)),
        Fact::new("id, if the agent only uses another service", [&elsewhere.id]).revealing(Reveals::AgentId),
        Fact::new("trust score, if the agent only uses another service", trust_markers(scenario.trust.elsewhere)),
        Fact::new("id, if the agent was deleted", [&deleted.id]).revealing(Reveals::AgentId),
        Fact::new("name and `metadata`, if the agent was deleted", [scenario::DELETED_AGENT]),
        Fact::new("SHA-256 of the public key, if the agent was deleted", [deleted.public_key_hash()]),
    ]
}

fn about_logins() -> Vec<Fact> {
    vec![
        Fact::new("client address of a login for the service", address_marker(address::LOGIN)),
        Fact::new("client address of a login for another service", address_marker(address::OTHER_LOGIN)),
        Fact::new("client address of a login for no service", address_marker(address::UNBOUND_LOGIN)),
        Fact::new("client address of a failed login for the service", address_marker(address::FAILED_LOGIN)),
        Fact::new(
            "client address of a failed login for a service that does not know the agent",
            address_marker(address::FAILED_LOGIN_AT_UNKNOWN),
        ),
        Fact::new("client address of the registration", address_marker(address::REGISTRATION)),
    ]
}

fn about_feedback(scenario: &Scenario) -> Vec<Fact> {
    vec![
        Fact::new("score and time of feedback of the service", [&scenario.feedback]),
        Fact::new("`reason` and `metadata` of feedback of the service", [scenario::REASON]),
        Fact::new("score, time and service id of feedback of another service", [&scenario.other_feedback]),
        Fact::new("`reason` and `metadata` of feedback of another service", [scenario::OTHER_REASON]),
    ]
}

async fn about_the_service(scenario: &Scenario) -> Vec<Fact> {
    let (home, (receiver, target)) = (&scenario.services.home, &scenario.webhooks.home);
    let path = format!("/audit?serviceId={}", home.service);
    let entries = scenario.control.api.get_as(scenario.control.human(), &path).await.expect(200);
    vec![
        Fact::new("service id", [&home.service]).revealing(Reveals::ServiceId),
        Fact::new("service name", [scenario::SERVICE_NAME]),
        Fact::new("owner of the service (issuer and subject)", [scenario::SERVICE_OWNER]),
        Fact::new("person to whom the service is offered", [scenario::OFFER_RECEIVER]),
        Fact::new("other services of its owner", [scenario::SECOND_SERVICE]),
        Fact::new("roles without agents, and their permissions", [scenario::UNASSIGNED_ROLE, scenario::PERMISSION]),
        Fact::new("names, scopes and times of API keys", [scenario::KEY_NAME]),
        Fact::new("API keys", [&home.key]),
        Fact::new("URLs of webhooks", [format!("\"{}\"", receiver.url), receiver.url.clone()]),
        Fact::new("secrets of webhooks", [&target.secret]),
        Fact::new("deliveries, with the answers of the receiver", [scenario::RECEIVER_ANSWER]),
        Fact::new("audit entries of the service", [text(&entries["data"][0]["hash"])]),
        Fact::new("client address of an administrator who changed the service", address_marker(address::ADMINISTRATOR)),
    ]
}

async fn about_the_deployment(scenario: &Scenario) -> Vec<Fact> {
    let human = scenario.control.human();
    let read = async |path: &str| scenario.control.api.get_as(human, path).await.expect(200);
    let (jwks, all) = (read("/.well-known/jwks.json").await, read("/audit?action=audit.began").await);
    vec![
        Fact::new("public signing keys", [text(&jwks["keys"][0]["x"])]),
        Fact::new("times at which signing keys begin and end", ["\"signsFrom\":"]),
        Fact::new("number of services and of active agents, at `GET /status`", ["\"activeAgents\":"]),
        Fact::new("services of people with whom the party has nothing to do", [scenario::UNRELATED_SERVICE]),
        Fact::new("audit entries of the deployment", [text(&all["data"][0]["hash"])]),
        Fact::new("URLs of webhooks of the deployment", [&scenario.webhooks.deployment.0.url]),
    ]
}
