//! Round trips of deleted services and agents, and of the rows that depend on them.

use super::{
    Registration, RoleDefinition, agent, assignment, credentials::login_query, name, owner, role, service, time,
    whole_list,
};
use crate::{
    domain::{
        agent::Agent,
        audit::{AuditAction, Initiator, NewAuditEntry},
        credential::SecretHash,
        quota::DELETED_SERVICE_COUNTS_FOR,
        role::{Assignment, Role},
        service::{KeyScope, Service, ServiceKey},
    },
    store::{
        StoreError, WriteTransaction,
        agents::{self, RoleHolderFilter},
        assignments,
        conformance::StoreFixture,
        departures, known_agents, logins,
        purge::{self, Deleted, DeletedKind, TakenAssignment},
        quotas, roles, services,
    },
};
use countersign_identity::{AgentId, AgentStatus, ApiKeyId, Revision, RoleId, ServiceId, StatusWithCutoff};
use std::time::Duration;

pub const DELETED: ServiceId = ServiceId::from_bits(50);

fn deleted_service() -> Service {
    Service { id: DELETED, owner: owner("deleted"), name: name("to be deleted"), ..service() }
}

fn role_of_deleted_service() -> Role {
    let definition = RoleDefinition { id: RoleId::from_bits(50), ..role().definition };
    Role { definition, service: DELETED, ..role() }
}

impl StoreFixture {
    pub async fn deleted_services_lose_what_depends_on_them(&self) {
        let (service, role) = (deleted_service(), role_of_deleted_service());
        let key = ServiceKey {
            id: ApiKeyId::from_bits(50),
            service: DELETED,
            owner: service.owner.clone(),
            name: name("a key"),
            scope: KeyScope::Full,
            managed_by: None,
            secret: SecretHash::from_store("hash".to_owned()),
            created_at: time(20),
            revoked_at: None,
        };
        let query = login_query(agent().id, None);
        let held = Assignment { role: role.definition.id, service: DELETED, expires_at: None, ..assignment() };
        self.commit(async |tx| {
            services::insert(tx.conn(), &service).await?;
            services::insert_key(tx.conn(), &key).await?;
            assert!(roles::insert(tx.conn(), &role).await?);
            assignments::upsert(tx.conn(), &held).await?;
            assert!(departures::insert(tx.conn(), agent().id, DELETED, true, time(32)).await?);
            agents::set_last_seen(tx.conn(), agent().id, Some(DELETED), time(33)).await?;
            assert_eq!(logins::read(tx.conn(), &query, time(33)).await?.audience, Some(DELETED));
            assert!(services::mark_deleted(tx.conn(), DELETED, time(33)).await?);
            assert!(!services::mark_deleted(tx.conn(), DELETED, time(34)).await?);
            assert_eq!(services::revoke_all_keys(tx.conn(), DELETED, time(33)).await?, 1);
            assert_eq!(services::revoke_all_keys(tx.conn(), DELETED, time(34)).await?, 0);
            assert_eq!(services::lock(tx.conn(), DELETED).await?, None);
            Ok(())
        })
        .await;
        let mut read = self.read().await;
        let conn = read.conn();
        let remaining = Service { name: name("deleted"), deleted_at: Some(time(33)), ..service.clone() };
        assert_eq!(services::find(conn, DELETED).await.unwrap(), Some(remaining));
        assert_eq!(services::find_live(conn, DELETED).await.unwrap(), None);
        assert_eq!(services::list(conn, Some(&service.owner), whole_list()).await.unwrap().total.count, 0);
        let counted_until = time(33).saturating_add(DELETED_SERVICE_COUNTS_FOR);
        for (now, counts) in [(time(34), true), (counted_until, false)] {
            assert_eq!(quotas::service_quota_is_reached(conn, &service.owner, 1, now).await.unwrap(), counts);
        }
        assert_eq!(roles::list(conn, DELETED).await.unwrap(), []);
        assert_eq!(roles::find(conn, DELETED, role.definition.id).await.unwrap(), None);
        assert_eq!(logins::read(conn, &query, time(33)).await.unwrap().audience, None);
        let basis = logins::read(conn, &login_query(agent().id, Some(DELETED)), time(33)).await.unwrap();
        // The query names the service, so the service stays the audience although it is deleted.
        assert_eq!((basis.audience, basis.has_service), (Some(DELETED), false));
        let listed = departures::list_services(conn, agent().id, time(33), whole_list()).await.unwrap();
        assert!(listed.items.iter().all(|item| item.service != DELETED), "{listed:?}");
        drop(read);
        self.rows_of_deleted_services_are_removed(&held, &role).await;
    }

    /// Must run after `audit_log_returns_what_was_written`, which starts the audit log. The deletion of a service seals its chain.
    pub async fn sealed_audit_chain_accepts_no_entry(&self) {
        let entry = |action| NewAuditEntry::for_service(DELETED, action);
        self.commit(async |tx| {
            tx.audit(&Initiator::SYSTEM, &entry(AuditAction::ServiceCreated)).await?;
            tx.audit(&Initiator::SYSTEM, &entry(AuditAction::ServiceDeleted)).await
        })
        .await;
        let append = async |mut tx: WriteTransaction| {
            tx.audit(&Initiator::SYSTEM, &entry(AuditAction::RoleCreated)).await?;
            tx.commit(()).await
        };
        let error = self.first.write("append", append).await.unwrap_err();
        assert!(matches!(error, StoreError::AuditChainSealed), "{error}");
    }

    /// Deletes two agents with the same public registration, one after the other: the unique index must accept both deleted rows.
    pub async fn deleted_agents_keep_only_their_id(&self) {
        let (id, cutoff) = (AgentId::from_bits(60), Revision::new(7));
        let registration = Registration { owner: None, name: name("to be deleted"), ..agent().registration };
        let created = Agent { id, registration, status: AgentStatus::Active, ..agent() };
        let same_registration = Agent { id: AgentId::from_bits(61), ..created.clone() };
        let deleted = Deleted::Agent(id);
        self.commit(async |tx| {
            assert!(agents::insert(tx.conn(), &created).await?);
            assignments::upsert(tx.conn(), &Assignment { agent: id, expires_at: None, ..assignment() }).await?;
            known_agents::record_contact(tx.conn(), id, service().id, time(50)).await?;
            assert!(departures::insert(tx.conn(), id, service().id, true, time(50)).await?);
            agents::mark_deleted(tx.conn(), id, cutoff, time(51)).await?;
            assert!(!agents::lock(tx.conn(), id).await?);
            assert_eq!(agents::find(tx.conn(), id).await?, None);
            let expected = StatusWithCutoff { status: AgentStatus::Revoked, cutoff };
            assert_eq!(agents::find_state(tx.conn(), id).await?.map(|state| state.status), Some(expected));
            assert_eq!(agents::find_state(tx.conn(), same_registration.id).await?, None);
            assert_eq!(agents::find_by_registration(tx.conn(), &created.registration).await?, None);
            let filter = RoleHolderFilter { service: service().id, role: None, status: None, now: time(51) };
            let holders = agents::list_role_holders(tx.conn(), &filter, whole_list()).await?;
            assert!(holders.items.iter().all(|holder| holder.id != id));
            Ok(())
        })
        .await;
        self.commit(async |tx| {
            let due = async |tx: &mut WriteTransaction, now| {
                purge::list_due(tx.conn(), DeletedKind::Agents, time(now), 9).await
            };
            assert_eq!((due(tx, 50).await?, due(tx, 51).await?), (vec![], vec![deleted]));
            assert_eq!(purge::take_assignments(tx.conn(), deleted, 9).await?.len(), 1);
            // The contact and the departure depend on the agent.
            assert_eq!(purge::delete_dependants(tx.conn(), deleted, 1).await?, 1);
            assert_eq!(purge::delete_dependants(tx.conn(), deleted, 9).await?, 1);
            purge::finish(tx.conn(), deleted, time(51), Duration::from_secs(10)).await?;
            // The registration can be used again, and the unique index accepts a second deleted agent, without a registration.
            assert!(agents::insert(tx.conn(), &same_registration).await?);
            agents::mark_deleted(tx.conn(), same_registration.id, cutoff, time(52)).await
        })
        .await;
    }

    /// The deleted objects of a kind whose rows must be removed at this time.
    pub async fn list_all_due(&self, kind: DeletedKind, now: i64) -> Vec<Deleted> {
        purge::list_due(self.read().await.conn(), kind, time(now), 9).await.unwrap()
    }

    async fn rows_of_deleted_services_are_removed(&self, held: &Assignment, role: &Role) {
        let deleted = Deleted::Service(DELETED);
        let kind = DeletedKind::Services;
        let list_due = async |now| self.list_all_due(kind, now).await;
        assert_eq!(purge::oldest_due(self.read().await.conn(), kind).await.unwrap(), Some(time(33)));
        assert_eq!((list_due(32).await, list_due(33).await), (vec![], vec![deleted]));
        let Assignment { agent, role: id, service, .. } = *held;
        let expected = TakenAssignment {
            agent,
            service,
            role: id,
            name: role.definition.name.clone(),
            role_deleted_at: None,
            expires_at: held.expires_at,
            expiry_reported: false,
        };
        let margin = Duration::from_secs(10);
        self.commit(async |tx| {
            let taken = purge::take_assignments(tx.conn(), deleted, 9).await?;
            assert!(taken.first() == Some(&expected) && taken.len() == 1, "{taken:?}");
            assert_eq!(purge::take_assignments(tx.conn(), deleted, 9).await?, []);
            // This removes the departure and the role. The API key was valid until the deletion, so it remains.
            assert_eq!(purge::delete_dependants(tx.conn(), deleted, 9).await?, 2);
            assert_eq!(purge::delete_dependants(tx.conn(), deleted, 9).await?, 0);
            assert_eq!(services::list_keys(tx.conn(), DELETED, whole_list()).await?.total.count, 1);
            // Transactions from before the deletion may insert rows until `margin` is over. Then the service is due again.
            purge::finish(tx.conn(), deleted, time(42), margin).await
        })
        .await;
        assert_eq!((list_due(42).await, list_due(43).await), (vec![], vec![deleted]));
        self.commit(async |tx| purge::finish(tx.conn(), deleted, time(43), margin).await).await;
        assert_eq!(list_due(99).await, []);
    }
}
