//! What each party sends and receives.

use super::{
    crawl::{Ids, crawl, try_changes, write},
    scenario::{AGENT_OWNER, EMAIL, RECEIVER_ANSWER, SERVICE_OWNER, Scenario},
};
use countersign_proto::v1::{AgentChanges, AgentStatus, SnapshotPage, revocation::Subject};
use countersign_tests::{Follower, Received, Receiver, Target, eventually, jwt};
use std::fmt::Write as _;

/// The parties, as the page names them.
pub const PARTIES: [&str; 10] = [
    "owner of the agent",
    "owner of the service",
    "administrator",
    "service, known",
    "service, unknown",
    "sync key",
    "agent",
    "stranger",
    "webhook of the service",
    "webhook of the deployment",
];

/// What a party sends and receives, divided by what the party must know to receive it.
#[derive(Default)]
pub struct Observation {
    /// Sent by the party itself, or received once when it created something.
    pub supplied: String,
    /// Received without knowing anything of others.
    pub alone: String,
    /// Received about agents that only a hash names. The hashes are replaced by the ids.
    pub hashed: String,
    /// Received with the ids of agents.
    pub with_agent_ids: String,
    /// Received with all ids of the deployment.
    pub with_all_ids: String,
    /// Received when agents show their tokens.
    pub with_tokens: String,
}

/// The observation of a party. `all` contains all ids of the deployment.
pub async fn observe(scenario: &Scenario, party: &str, all: &Ids) -> Observation {
    let (humans, services, tokens) = (&scenario.humans, &scenario.services, &scenario.tokens);
    let (home, unknown) = (&services.home, &services.unknown);
    let none = Ids::default;
    match party {
        "owner of the agent" => {
            let supplied = [EMAIL, AGENT_OWNER, &scenario.public_key()].join("\n");
            let seen = by_api((scenario, all), &[Some(&humans.agent_owner)], none(), &[]).await;
            Observation { supplied, ..seen }
        }
        "owner of the service" => {
            let supplied = [SERVICE_OWNER, home.key.as_str()].join("\n");
            let seen = by_api((scenario, all), &[Some(&home.human)], none(), &[&home.service, &services.second]).await;
            Observation { supplied, ..seen }
        }
        "administrator" => Observation {
            alone: crawl(scenario, &[Some(scenario.control.human())], none()).await,
            ..Default::default()
        },
        "service, known" => {
            let seen =
                by_api((scenario, all), &[Some(&home.key)], Ids::from_text(&home.service), &[&home.service]).await;
            let shown = [tokens.home.as_str(), &tokens.unbound];
            let with_tokens = verify(scenario, &home.service, &home.key, &shown).await;
            let supplied = [home.key.as_str(), &scenario.webhooks.home.1.secret].join("\n");
            Observation { supplied, with_tokens, ..seen }
        }
        "service, unknown" => {
            let seen =
                by_api((scenario, all), &[Some(&unknown.key)], Ids::from_text(&unknown.service), &[&unknown.service])
                    .await;
            let with_tokens = verify(scenario, &unknown.service, &unknown.key, &[&tokens.unbound]).await;
            Observation { with_tokens, ..seen }
        }
        "sync key" => {
            let key = services.sync_key.as_str();
            let seen = by_api((scenario, all), &[Some(key)], Ids::from_text(&home.service), &[]).await;
            let (plain, hashed) = streams(scenario, key).await;
            let with_tokens = verify(scenario, &home.service, key, &[&tokens.home, &tokens.unbound]).await;
            Observation { alone: seen.alone + &plain, hashed, with_tokens, ..seen }
        }
        "agent" => {
            let own =
                [&tokens.home, &tokens.other, &tokens.unbound, &tokens.elsewhere, &tokens.suspended, &tokens.revoked];
            let claims = own.map(|token| jwt::claims(token).to_string()).join("\n");
            let bearers = [Some(tokens.home.as_str()), Some(&tokens.unbound)];
            let seen = by_api((scenario, all), &bearers, Ids::from_text(&claims), &[]).await;
            Observation { supplied: scenario.known_to_the_agent().await, alone: seen.alone + &claims, ..seen }
        }
        "stranger" => by_api((scenario, all), &[None, Some(&humans.stranger)], none(), &[]).await,
        "webhook of the service" => by_webhook(&scenario.webhooks.home),
        "webhook of the deployment" => by_webhook(&scenario.webhooks.deployment),
        other => panic!("the test does not know the party `{other}`"),
    }
}

/// What a party reads through the API, first with the ids that it has. `managed` are the services that it manages.
async fn by_api(
    (scenario, all): (&Scenario, &Ids),
    credentials: &[Option<&str>],
    own: Ids,
    managed: &[&String],
) -> Observation {
    let (mut with_agents, mut with_all, mut of_others) = (own.clone(), own.clone(), all.clone());
    with_agents.extend(Ids::from_text(&scenario.agent_ids()));
    with_all.extend(all.clone());
    of_others.remove(managed);
    let changes = try_changes(scenario, credentials, &of_others).await;
    Observation {
        alone: crawl(scenario, credentials, own).await,
        with_agent_ids: crawl(scenario, credentials, with_agents).await,
        with_all_ids: crawl(scenario, credentials, with_all).await + &changes,
        ..Default::default()
    }
}

/// What a service with this id and key learns from tokens that agents send to it: the response of `verify`, and the claims, which
/// it can decode.
async fn verify(scenario: &Scenario, service: &str, key: &str, tokens: &[&str]) -> String {
    let mut transcript = String::new();
    for token in tokens {
        write(&mut transcript, &scenario.control.verify_at(service, key, token).await);
        writeln!(transcript, "{}", jwt::claims(token)).unwrap();
    }
    transcript
}

fn by_webhook((receiver, target): &(Receiver, Target)) -> Observation {
    let describe = |request: &Received| format!("{} {:?} {}", request.line, request.headers, request.json());
    let requests: Vec<_> = receiver.received().iter().map(describe).collect();
    Observation {
        supplied: [receiver.url.as_str(), &target.secret, RECEIVER_ANSWER].join("\n"),
        alone: requests.join("\n"),
        ..Default::default()
    }
}

/// What a sync stream tells. The first text names no agents, and in the second one the test replaced the hashes of agents by their
/// ids.
async fn streams(scenario: &Scenario, key: &str) -> (String, String) {
    let complete = async || {
        let texts = read_stream(scenario, key).await;
        // Trust scores reach the streams a moment after the feedback, so read again until they are there.
        let has = |score: f64| texts.1.contains(&format!("trust={score}"));
        (has(scenario.trust.regular) && has(scenario.trust.unbound)).then_some(texts)
    };
    eventually("the stream contains the trust scores", complete, || "they are missing".to_owned()).await
}

async fn read_stream(scenario: &Scenario, key: &str) -> (String, String) {
    let (mut plain, mut hashed) = (String::new(), String::new());
    let mut stream = Follower::start(&scenario.control, key, 0).await.unwrap();
    let mut last = false;
    while !last {
        let SnapshotPage { info, keys: _, roles, agents, revocations, last: is_last, .. } = stream.snapshot().await;
        last = is_last;
        writeln!(plain, "{} {roles:?}", info.map(|info| info.service_id).unwrap_or_default()).unwrap();
        let subjects = revocations.into_iter().filter_map(|revocation| revocation.subject);
        for subject in subjects {
            let (Subject::TokenId(id) | Subject::SessionId(id)) = subject;
            writeln!(plain, "{id}").unwrap();
        }
        for changes in &agents {
            let ids = scenario.agent_ids();
            let id = ids.split(' ').find(|id| stream.agent_hash(id) == changes.agent_hash);
            writeln!(hashed, "{}", describe(id.unwrap_or("?"), changes)).unwrap();
        }
    }
    (plain, hashed)
}

fn describe(agent: &str, changes: &AgentChanges) -> String {
    let trust = changes.trust.map(|trust| format!("trust={}", f64::from(trust.hundredths) / 100.0));
    let status = changes.status.map(|status| format!("status={:?}", AgentStatus::try_from(status.status)));
    let roles = changes.roles.as_ref().map(|roles| format!("{:?}", roles.grants));
    [Some(agent.to_owned()), trust, status, roles].into_iter().flatten().collect::<Vec<_>>().join(" ")
}
