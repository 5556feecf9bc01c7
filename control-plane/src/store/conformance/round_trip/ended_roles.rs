//! Round trips of expired assignments, and of assignments of deleted roles.

use super::{agent, assignment, credentials::login_query, role, service, time, whole_list};
use crate::{
    domain::{
        agent::{Agent, Registration},
        role::{Assignment, Role},
    },
    store::{
        Conn, StoreError, WriteTransaction,
        agents::{self, RoleHolderFilter},
        assignments::{self, ExpiredAssignment, ManagedGrant, RemovedAssignment},
        conformance::StoreFixture,
        departures, logins,
        purge::{self, Deleted, DeletedKind, TakenAssignment},
        roles,
    },
};
use countersign_identity::{AgentId, RoleDefinition, RoleGrant, RoleId, ServiceId};
use std::time::Duration;

impl StoreFixture {
    /// `other` is a role that was deleted at time 34 and has no assignments.
    pub async fn assignments_of_deleted_roles_count_nowhere(&self, other: RoleId) {
        let definition = RoleDefinition { id: RoleId::from_bits(70), ..role().definition };
        let name = "reused".to_owned().try_into().unwrap();
        let new = Role { definition: RoleDefinition { name, ..definition }, ..role() };
        let same_name =
            Role { definition: RoleDefinition { id: RoleId::from_bits(71), ..new.definition.clone() }, ..new.clone() };
        let (service, id) = (service().id, new.definition.id);
        let held = Assignment { role: id, expires_at: None, ..assignment() };
        let second = Assignment { agent: AgentId::from_bits(2), expires_at: Some(time(9)), ..held.clone() };
        self.commit(async |tx| {
            assert!(roles::insert(tx.conn(), &new).await?);
            assignments::upsert(tx.conn(), &held).await?;
            assignments::upsert(tx.conn(), &second).await?;
            assert_eq!(self.places_of_assignment(tx).await?, [true; 5]);
            assert!(roles::mark_deleted(tx.conn(), service, id, "deleted-70", time(40)).await?);
            assert_eq!(self.places_of_assignment(tx).await?, [false; 5]);
            assert!(roles::insert(tx.conn(), &same_name).await?, "the name is free");
            assert_eq!(self.places_of_assignment(tx).await?, [false; 5]);
            assert!(roles::mark_deleted(tx.conn(), service, same_name.definition.id, "deleted-71", time(41)).await?);
            Ok(())
        })
        .await;
        let kind = DeletedKind::Roles;
        let due = async |now| self.list_all_due(kind, now).await;
        let all = [other, id, same_name.definition.id].map(Deleted::Role);
        assert_eq!((due(33).await, due(40).await, due(41).await), (vec![], all[..2].to_vec(), all.to_vec()));
        assert_eq!(purge::oldest_due(self.read().await.conn(), kind).await.unwrap(), Some(time(34)));
        let taken = |assignment: &Assignment| TakenAssignment {
            agent: assignment.agent,
            service,
            role: id,
            name: new.definition.name.clone(),
            role_deleted_at: Some(time(40)),
            expires_at: assignment.expires_at,
            expiry_reported: false,
        };
        self.commit(async |tx| {
            let take = async |tx: &mut WriteTransaction| purge::take_assignments(tx.conn(), all[1], 1).await;
            assert_eq!(take(tx).await?, [taken(&held)]);
            assert_eq!(take(tx).await?, [taken(&second)]);
            assert_eq!(take(tx).await?, []);
            assert_eq!(purge::delete_dependants(tx.conn(), all[1], 9).await?, 0);
            for deleted in &all[1..] {
                purge::finish(tx.conn(), *deleted, time(41), Duration::ZERO).await?;
            }
            // `finish` removes the row of a role only if the role was deleted.
            purge::finish(tx.conn(), Deleted::Role(role().definition.id), time(41), Duration::ZERO).await?;
            assert!(roles::find(tx.conn(), service, role().definition.id).await?.is_some());
            Ok(())
        })
        .await;
        assert_eq!(due(41).await, all[..1]);
        assert_eq!(roles::find_fate(self.read().await.conn(), id).await.unwrap(), None);
    }

    /// For each of five queries, whether the agent appears as the holder of a role at the service.
    async fn places_of_assignment(&self, tx: &mut WriteTransaction) -> Result<[bool; 5], StoreError> {
        let (agent, service, now) = (agent().id, service().id, time(6));
        let conn = tx.conn();
        let filter = RoleHolderFilter { service, role: None, status: None, now };
        agents::set_last_seen(conn, agent, Some(service), now).await?;
        Ok([
            logins::read(conn, &login_query(agent, None), now).await?.audience.is_some(),
            !logins::read(conn, &login_query(agent, Some(service)), now).await?.roles.is_empty(),
            !assignments::list_active_grants(conn, service, agent, now).await?.is_empty()
                && !assignments::list_active_grants_of_agents(conn, service, &[agent], now).await?.is_empty(),
            agents::list_role_holders(conn, &filter, whole_list()).await?.total.count > 0,
            departures::list_services(conn, agent, now, whole_list()).await?.total.count > 0,
        ])
    }

    pub async fn expiry_is_reported_once(&self) {
        let Assignment { agent, role, service, expires_at, .. } = assignment();
        self.commit(async |tx| {
            let conn = tx.conn();
            assert!(!assignments::has_unreported_expiries(conn, time(6)).await?);
            assert!(assignments::has_unreported_expiries(conn, time(7)).await?);
            let expired = [ExpiredAssignment { agent, role, service, at: time(7) }];
            assert_eq!(assignments::take_unreported_expiries(conn, time(8), 9).await?, expired);
            assert_eq!(assignments::take_unreported_expiries(conn, time(8), 9).await?, []);
            assert_eq!(assignments::mark_expiry_reported(conn, agent, role, time(8)).await?, None);
            let removed = RemovedAssignment { expires_at, expiry_reported: true };
            assert_eq!(assignments::remove(conn, ServiceId::from_bits(98), agent, role).await?, None);
            assert_eq!(assignments::remove(conn, service, agent, role).await?, Some(removed));
            assert_eq!(assignments::remove(conn, service, agent, role).await?, None);
            // If a role is assigned again after the expiry was reported, the expiry of the new assignment is also reported.
            assignments::upsert(conn, &assignment()).await?;
            assert_eq!(assignments::mark_expiry_reported(conn, agent, role, time(6)).await?, None);
            assert_eq!(assignments::mark_expiry_reported(conn, agent, role, time(8)).await?, expires_at);
            assert_eq!(assignments::remove(conn, service, agent, role).await?, Some(removed));
            self.reported_expiry_is_deleted(tx).await
        })
        .await;
    }

    /// A list is written by statements for 1, 4, 32 or 256 rows. The counts are at and around these numbers.
    pub async fn lists_of_rows_are_written_and_read_whole(&self) {
        for count in [0, 1, 3, 4, 5, 33, 257] {
            let mut tx = self.first.lock_writes().await;
            self.check_list_of_rows(tx.conn(), count).await.unwrap();
        }
    }

    async fn check_list_of_rows(&self, conn: &mut Conn, count: u128) -> Result<(), StoreError> {
        let service = service().id;
        let agents: Vec<_> = (0..count).map(|number| AgentId::from_bits(97_000 + number)).collect();
        for id in &agents {
            let name = id.to_string().try_into().unwrap();
            let registration = Registration { name, ..agent().registration };
            assert!(agents::insert(conn, &Agent { id: *id, registration, ..agent() }).await?);
        }
        let new: Vec<_> = agents.iter().map(|agent| Assignment { agent: *agent, ..assignment() }).collect();
        for assignment in &new {
            assignments::upsert(conn, assignment).await?;
        }
        let grants = assignments::list_active_grants_of_agents(conn, service, &agents, time(6)).await?;
        let managed_grant = |new: &Assignment| {
            let grant = RoleGrant { role: new.role, until: new.expires_at };
            (new.agent, ManagedGrant { grant, managed_by: new.managed_by.clone() })
        };
        let expected = new.iter().map(managed_grant);
        assert_eq!(sorted_by_key(grants, |(agent, _)| *agent), expected.collect::<Vec<_>>());
        Ok(())
    }

    async fn reported_expiry_is_deleted(&self, tx: &mut WriteTransaction) -> Result<(), StoreError> {
        let conn = tx.conn();
        let end = time(7).saturating_add(assignments::KEPT_AFTER_EXPIRY);
        assignments::upsert(conn, &assignment()).await?;
        assert_eq!(assignments::EXPIRED.oldest_deletable(conn, end).await?, None);
        assert_eq!(assignments::EXPIRED.delete(conn, end, end, 9).await?, 0, "the expiry is not reported");
        assignments::take_unreported_expiries(conn, time(8), 9).await?;
        assert_eq!(assignments::EXPIRED.oldest_deletable(conn, end).await?, Some(end));
        let too_early = end.saturating_sub(Duration::from_micros(1));
        assert_eq!(assignments::EXPIRED.delete(conn, time(0), too_early, 9).await?, 0);
        assert_eq!(assignments::EXPIRED.delete(conn, end, end, 9).await?, 1);
        Ok(())
    }
}

fn sorted_by_key<T, K: Ord>(mut items: Vec<T>, key: impl FnMut(&T) -> K) -> Vec<T> {
    items.sort_unstable_by_key(key);
    items
}
