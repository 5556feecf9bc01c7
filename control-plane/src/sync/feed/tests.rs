//! Tests of the queues of followers that do not keep up.

use super::*;
use crate::domain::change::RevisionRange;
use crate::domain::service::ServiceSettings;
use countersign_identity::{AgentChanges, AgentId, RoleGrant, RoleId, Versioned};
use std::collections::BTreeMap;
use tokio::sync::mpsc::error::TryRecvError;

const SERVICE: ServiceId = ServiceId::from_bits(1);
const OTHER_SERVICE: ServiceId = ServiceId::from_bits(2);

/// Changes of agents with many roles.
fn changes(revision: Revision, agents: u128) -> Changes {
    let value = vec![RoleGrant { role: RoleId::from_bits(1), until: None }; 256];
    let of_agent = AgentChanges { roles: Some(Versioned { revision, value }), ..AgentChanges::default() };
    let agents = (0..agents).map(|number| (AgentId::from_bits(number), of_agent.clone())).collect();
    Changes { agents, ..Changes::default() }
}

/// Distributes a batch with changes of this many agents of some services.
fn distribute(feed: &ChangeFeed, number: i64, sizes: &[(ServiceId, u128)]) {
    let (since, revision) = (Revision::new(number - 1), Revision::new(number));
    let by_service: BTreeMap<_, _> =
        sizes.iter().map(|(service, agents)| (*service, changes(revision, *agents))).collect();
    let batch = ChangeBatch {
        range: RevisionRange { since, until: revision },
        read_at: revision,
        all_services: Changes::default(),
        unbound_tokens: Changes::default(),
        by_service,
    };
    feed.distribute(batch, since);
}

/// Receives all batches that wait.
fn receive(subscription: &mut Subscription) -> CoalescedBatches {
    let batch = subscription.batches.try_recv().unwrap();
    subscription.coalesce(batch, false)
}

#[test]
fn waiting_batches_are_weighed() {
    let feed = ChangeFeed::new(Revision::default());
    let (mut slow, mut fast) = (
        feed.subscribe(SERVICE, false, StreamStatus::for_tests()),
        feed.subscribe(SERVICE, false, StreamStatus::for_tests()),
    );
    let mut of_other = feed.subscribe(OTHER_SERVICE, false, StreamStatus::for_tests());
    for number in 1..=20 {
        // The changes of the agents of this service have a size of about half a megabyte.
        distribute(&feed, number, &[(SERVICE, 64), (OTHER_SERVICE, 1)]);
        let batch = receive(&mut fast);
        assert_eq!((batch.revision, batch.changes.agents.len()), (Revision::new(number), 64));
    }
    let mut received = 0;
    let end = loop {
        match slow.batches.try_recv() {
            Ok(batch) => {
                received += 1;
                assert_eq!(batch.revision, Revision::new(received), "no batch is missing before the end");
            }
            Err(end) => break end,
        }
    };
    assert_eq!(end, TryRecvError::Disconnected);
    assert!((2..20).contains(&received), "{received}");
    for _ in 0..20 {
        assert_eq!(CoalescedBatches::new(of_other.batches.try_recv().unwrap(), false).changes.agents.len(), 1);
    }
    assert_eq!(of_other.batches.try_recv().err(), Some(TryRecvError::Empty));
}

#[test]
fn one_large_batch_may_wait() {
    let feed = ChangeFeed::new(Revision::default());
    let mut subscription = feed.subscribe(SERVICE, false, StreamStatus::for_tests());
    for number in 1..=3 {
        distribute(&feed, number, &[(SERVICE, 1000)]);
        assert_eq!(receive(&mut subscription).changes.agents.len(), 1000);
    }
}

#[test]
fn waiting_batches_become_one_and_keep_their_space_until_they_are_sent() {
    let feed = ChangeFeed::new(Revision::default());
    let mut subscription = feed.subscribe(SERVICE, false, StreamStatus::for_tests());
    for number in 1..=3 {
        distribute(&feed, number, &[(SERVICE, 1)]);
    }
    let batch = receive(&mut subscription);
    assert_eq!((batch.oldest, batch.revision, batch.read_at), (Revision::new(1), Revision::new(3), Revision::new(3)));
    let revisions: Vec<_> = batch.changes.agents.values().map(|agent| agent.roles.as_ref().unwrap().revision).collect();
    assert_eq!(revisions, [Revision::new(3)]);
    assert_eq!(subscription.batches.try_recv().err(), Some(TryRecvError::Empty));

    // The sidecar has not received the batches, so a batch that needs all space does not fit.
    distribute(&feed, 4, &[(SERVICE, 1000)]);
    assert_eq!(subscription.batches.try_recv().err(), Some(TryRecvError::Disconnected));
}

#[test]
fn nothing_is_added_to_changes_of_more_than_one_message() {
    let feed = ChangeFeed::new(Revision::default());
    let mut subscription = feed.subscribe(SERVICE, false, StreamStatus::for_tests());
    distribute(&feed, 1, &[(SERVICE, 5)]);
    distribute(&feed, 2, &[(SERVICE, 1)]);
    assert_eq!(receive(&mut subscription).revision, Revision::new(1));
    assert_eq!(receive(&mut subscription).revision, Revision::new(2));
}

#[test]
fn nothing_is_added_to_a_change_of_the_settings() {
    let feed = ChangeFeed::new(Revision::default());
    let mut subscription = feed.subscribe(SERVICE, false, StreamStatus::for_tests());
    distribute(&feed, 1, &[(SERVICE, 1)]);
    let (since, revision) = (Revision::new(1), Revision::new(2));
    let settings = ServiceSettings { accepts_unbound: true, ..ServiceSettings::default() };
    let settings = Changes { settings: Some(settings), ..Changes::default() };
    feed.distribute(
        ChangeBatch {
            range: RevisionRange { since, until: revision },
            read_at: revision,
            all_services: Changes::default(),
            unbound_tokens: Changes::default(),
            by_service: BTreeMap::from([(SERVICE, settings)]),
        },
        since,
    );
    distribute(&feed, 3, &[(SERVICE, 2)]);
    let batch = receive(&mut subscription);
    assert_eq!((batch.revision, batch.changes.agents.len()), (revision, 1));
    assert_eq!(batch.changes.accepts_unbound(), Some(true));
    assert_eq!(receive(&mut subscription).revision, Revision::new(3));
}
