//! Tests of the sync stream with a client that is independent of the sidecar's.

use countersign_proto::{PROTOCOL_VERSION, v1::Hello};
use countersign_tests::{
    Agent, ControlPlane, Follower, eventually,
    follower::{channel, hello, narrow_channel},
};
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;
use tonic::Code;

#[tokio::test]
async fn stream_sends_snapshot_then_changes_in_commit_order_with_revisions() {
    let control = ControlPlane::start().await;
    let role = control.create_role("reader", &["read"]).await;
    let mut follower = Follower::start(&control, control.key(), 0).await.unwrap();
    let page = follower.snapshot().await;
    assert!(page.last);
    let info = page.info.unwrap();
    assert_eq!((info.service_id.as_str(), info.issuer.as_str()), (control.service(), control.env["URL"].as_str()));
    assert_eq!((info.accepts_unbound_tokens, info.max_staleness_seconds), (true, 3600));
    assert_eq!(page.keys.unwrap().points.len(), 2, "the signing key and the next one");
    assert_eq!(page.roles.as_ref().unwrap().roles[0].id, role);
    assert!(page.roles.unwrap().roles[0].created_revision <= page.revision);

    let agent = Agent::register(&control, "agent").await;
    control.assign(&agent.id, &role).await;
    let assigned = follower.delta().await;
    assert!(assigned.revision > page.revision);
    let facet = assigned.agents[0].roles.as_ref().unwrap();
    assert_eq!((&assigned.agents[0].agent_hash, facet.revision), (&follower.agent_hash(&agent.id), assigned.revision));
    assert_eq!(facet.grants[0].role_id, role);

    agent.login().await;
    control.set_status(&agent.id, "suspended").await.expect(200);
    let suspended = follower.delta().await;
    let facet = suspended.agents[0].status.as_ref().unwrap();
    assert_eq!((facet.revision, facet.cutoff), (suspended.revision, suspended.revision));
    assert!(suspended.agents[0].roles.is_none(), "the delta contains only the change");
}

#[tokio::test]
async fn pong_arrives_after_all_changes_up_to_its_revision() {
    let control = ControlPlane::start().await;
    let role = control.create_role("reader", &["read"]).await;
    let agent = Agent::register(&control, "agent").await;
    let mut follower = Follower::start(&control, control.key(), 0).await.unwrap();
    let mut newest = follower.snapshot().await.revision;
    for number in 1..=20 {
        control.assign(&agent.id, &role).await;
        let (deltas, pong) = follower.ping(number).await.unwrap();
        assert_eq!(pong.number, number);
        let last = deltas.last().expect("the change precedes the pong");
        assert!(last.revision > newest && last.revision == pong.revision && pong.floor <= pong.revision);
        newest = pong.revision;
    }
}

#[tokio::test]
async fn stream_resumes_from_a_revision_or_sends_a_snapshot() {
    let control = ControlPlane::start().await;
    let role = control.create_role("reader", &["read"]).await;
    let agent = Agent::register(&control, "agent").await;
    let mut follower = Follower::start(&control, control.key(), 0).await.unwrap();
    let received_revision = follower.snapshot().await.revision;
    drop(follower);
    control.assign(&agent.id, &role).await;
    control.revoke(&agent.id, &role).await;

    let mut resumed = Follower::start(&control, control.key(), received_revision).await.unwrap();
    let (settings, changes) = (resumed.delta().await, resumed.delta().await);
    assert!(
        settings.info.is_some() && settings.revision == received_revision,
        "the settings of the service arrive first"
    );
    assert_eq!(changes.agents.len(), 1, "two changes of one facet arrive as one record");
    assert!(changes.agents[0].roles.as_ref().unwrap().grants.is_empty());
    assert!(changes.keys.is_none() && changes.roles.is_none());

    for unknown in [received_revision + 1, i64::MAX, -1, 1] {
        let mut follower = Follower::start(&control, control.key(), unknown).await.unwrap();
        assert!(follower.snapshot().await.info.is_some(), "{unknown}");
    }
}

#[tokio::test]
async fn role_deletion_is_one_change_for_any_number_of_agents_with_the_role() {
    let control = ControlPlane::start().await;
    let (_, other_key) = control.create_service(json!({ "name": "other" })).await;
    let role = control.create_role("reader", &["read"]).await;
    for number in 0..3 {
        let agent = Agent::register(&control, &format!("agent {number}")).await;
        control.assign(&agent.id, &role).await;
    }
    let mut follower = Follower::start(&control, control.key(), 0).await.unwrap();
    let (page, agents_page) = (follower.snapshot().await, follower.snapshot().await);
    assert_eq!((page.roles.unwrap().roles.len(), agents_page.agents.len(), agents_page.last), (1, 3, true));
    let mut other = Follower::start(&control, &other_key, 0).await.unwrap();
    other.snapshot().await;

    control.delete_role(&role).await.expect(200);
    let deleted = follower.delta().await;
    assert!(deleted.revision > page.revision && deleted.agents.is_empty() && deleted.revocations.is_empty());
    assert!(deleted.roles.expect("the delta contains roles").roles.is_empty());
    let (deltas, pong) = other.ping(1).await.unwrap();
    assert!(deltas.is_empty() && pong.revision == deleted.revision, "other services do not receive the change");

    let mut new_follower = Follower::start(&control, control.key(), 0).await.unwrap();
    assert!(new_follower.snapshot().await.roles.unwrap().roles.is_empty());
}

#[tokio::test]
async fn revocation_is_sent_once() {
    let control = ControlPlane::start().await;
    let agent = Agent::register(&control, "agent").await;
    let (login, other) = (agent.login().await, agent.login().await);
    let next = agent.api().refresh(&other.refresh_token).await.expect("the refresh succeeds");
    let mut follower = Follower::start(&control, control.key(), 0).await.unwrap();
    follower.snapshot().await;
    let text = |secret: &SecretString| secret.expose_secret().to_owned();
    let first = [text(&login.access_token), "garbage".into(), text(&login.access_token)];
    let second = [text(&next.refresh_token), text(&next.refresh_token), text(&next.access_token)];
    let used = [text(&other.refresh_token), text(&other.access_token), text(&login.access_token)];
    let (mut counts, mut revisions) = (Vec::new(), Vec::new());
    for token in first.into_iter().chain(second).chain(used) {
        control.revoke_token(&token).await;
        let (deltas, pong) = follower.ping(1).await.unwrap();
        assert!(deltas.iter().all(|delta| delta.revision == pong.revision && delta.revocations.len() == 1));
        counts.push(deltas.len());
        revisions.push(pong.revision);
    }
    assert_eq!(counts, [1, 0, 0, 1, 0, 0, 0, 0, 0]);
    assert_eq!(
        (revisions[0], revisions[3]),
        (revisions[2], revisions[8]),
        "a second revocation does not advance the revision"
    );
}

#[tokio::test]
async fn revoking_an_expired_token_sends_no_change() {
    let control = ControlPlane::start_with(&["tokens.access_seconds=1"]).await;
    let token = Agent::register(&control, "agent").await.token().await;
    let mut follower = Follower::start(&control, control.key(), 0).await.unwrap();
    follower.snapshot().await;
    let expired = async || (control.verify(&token).await.error().2 == "token_expired").then_some(());
    eventually("the token expires", expired, String::new).await;
    control.revoke_token(&token).await;
    assert!(follower.ping(1).await.unwrap().0.is_empty());
}

#[tokio::test]
async fn stream_of_a_revoked_key_ends_with_and_without_a_ping() {
    let control = ControlPlane::start().await;
    let body = json!({ "name": "short-lived", "scope": "sync" });
    let key = control.api.send_as(control.human(), "POST", &control.path("/keys"), body).await.expect(201);
    let open = async || {
        let mut follower = Follower::start(&control, key["apiKey"].as_str().unwrap(), 0).await.unwrap();
        follower.snapshot().await;
        follower.ping(1).await.unwrap();
        follower
    };
    let (mut pinging, mut silent) = (open().await, open().await);
    let path = control.path(&format!("/keys/{}", key["keyId"].as_str().unwrap()));
    let revoked = control.api.send_as(control.human(), "DELETE", &path, json!({})).await.expect(200);
    assert_eq!(revoked["revoked"], true);
    assert_eq!(pinging.ping(2).await.unwrap_err().code(), Code::Unauthenticated);
    assert_eq!(silent.next().await.unwrap_err().code(), Code::Unauthenticated);
}

/// Each change of an agent with a role takes about 70 bytes in a message.
#[tokio::test]
async fn large_change_is_split_and_each_page_of_changes_advances_the_revision() {
    const AGENTS: usize = 1500;
    let control = ControlPlane::start().await;
    let role = control.create_role("reader", &["read"]).await;
    let mut follower = Follower::start(&control, control.key(), 0).await.unwrap();
    let received_revision = follower.snapshot().await.revision;
    drop(follower);
    for number in 0..AGENTS {
        let agent = Agent::register(&control, &format!("agent {number}")).await;
        control.assign(&agent.id, &role).await;
    }
    let mut resumed = Follower::start(&control, control.key(), received_revision).await.unwrap();
    let (settings, first) = (resumed.delta().await, resumed.delta().await);
    assert_eq!(settings.revision, received_revision);
    assert!(settings.info.is_some() && first.info.is_none() && first.revision > received_revision);
    let (deltas, pong) = resumed.ping(1).await.unwrap();
    assert!(!deltas.is_empty() && deltas.is_sorted_by_key(|delta| delta.revision));
    assert_eq!(deltas.last().unwrap().revision, pong.revision);
    let received: usize = [first].iter().chain(&deltas).map(|delta| delta.agents.len()).sum();
    assert_eq!(received, AGENTS);

    let mut new_follower = Follower::start(&control, control.key(), 0).await.unwrap();
    let mut pages = vec![new_follower.snapshot().await];
    while !pages.last().unwrap().last {
        pages.push(new_follower.snapshot().await);
    }
    assert!(pages.len() > 3, "{}", pages.len());
    assert_eq!(pages.iter().map(|page| page.agents.len()).sum::<usize>(), AGENTS);
    assert!(pages.iter().all(|page| page.revision == pong.revision));
    assert!(pages.is_sorted_by_key(|page| page.cursor) && pages.last().unwrap().cursor == pong.revision);
}

#[tokio::test]
async fn changes_that_wait_for_a_slow_client_are_sent_together() {
    const ROLES: usize = 120;
    const CHANGES: usize = 40;
    let control = ControlPlane::start().await;
    for number in 0..ROLES {
        control.create_role(&format!("{number:0>64}"), &["read"]).await;
    }
    let mut follower = Follower::open(narrow_channel(&control).await, control.key(), 0).await.unwrap();
    let page = follower.snapshot().await;
    assert_eq!(page.roles.unwrap().roles.len(), ROLES);
    // Each change sends all definitions, about 20 KiB, and the client does not read yet. There are few
    // changes, because the stream of a client that does not read for ten seconds ends.
    let mut role = String::new();
    for _ in 0..CHANGES / 2 {
        role = control.create_role("changed", &["read"]).await;
        control.delete_role(&role).await.expect(200);
    }
    let last = control.create_role("changed", &["read"]).await;
    let (deltas, pong) = follower.ping(1).await.unwrap();
    assert!(deltas.len() < CHANGES / 2, "{} deltas", deltas.len());
    assert!(deltas.is_sorted_by_key(|delta| delta.revision));
    let newest = deltas.last().unwrap();
    let roles: Vec<_> = newest.roles.as_ref().unwrap().roles.iter().map(|role| role.id.as_str()).collect();
    assert!(roles.contains(&last.as_str()) && !roles.contains(&role.as_str()));
    assert_eq!((roles.len(), newest.revision), (ROLES + 1, pong.revision));
}

#[tokio::test]
async fn client_of_another_protocol_version_is_refused_with_both_versions_and_advice() {
    let control = ControlPlane::start().await;
    for (version, advice) in
        [(PROTOCOL_VERSION - 1, "upgrade the sidecar"), (PROTOCOL_VERSION + 1, "upgrade the control plane")]
    {
        let hello = Hello { protocol_version: version, ..hello(0) };
        let channel = channel(&control).await;
        let mut follower = Follower::open_with_hello(channel, control.key(), hello).await.unwrap();
        let status = follower.next().await.unwrap_err();
        let expected = [format!("version {version}"), format!("version {PROTOCOL_VERSION}"), advice.to_owned()];
        assert!(expected.iter().all(|expected| status.message().contains(expected)), "{status:?}");
        assert_eq!(status.code(), Code::FailedPrecondition);
    }
}
