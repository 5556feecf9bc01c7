//! Round trips of deleted services and agents, and of the rows that depend on them.

use super::{ALL, RoleDefinition, agent, assignment, name, owner, role, service, time};
use crate::{
    domain::{
        credential::SecretHash,
        role::{Assignment, Role},
        service::{KeyScope, Service, ServiceKey},
    },
    store::{
        assignments,
        conformance::StoreFixture,
        departures,
        purge::{self, Deleted, RemainingAssignment},
        quotas, roles, services,
    },
};
use countersign_identity::{ApiKeyId, RoleId, ServiceId};
use std::time::Duration;

const DELETED: ServiceId = ServiceId::from_bits(50);

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
            name: name("a key"),
            scope: KeyScope::Full,
            secret: SecretHash::from_store("hash".to_owned()),
            created_at: time(20),
            revoked_at: None,
        };
        let held = Assignment { role: role.definition.id, service: DELETED, expires_at: None, ..assignment() };
        self.commit(async |tx| {
            services::insert(tx.conn(), &service).await?;
            services::insert_key(tx.conn(), &key).await?;
            assert!(roles::insert(tx.conn(), &role).await?);
            assignments::upsert(tx.conn(), &held).await?;
            assert!(departures::insert(tx.conn(), agent().id, DELETED, time(32)).await?);
            assert!(assignments::holds_role(tx.conn(), agent().id, DELETED, time(33)).await?);
            assert!(services::mark_deleted(tx.conn(), DELETED, time(33)).await?);
            assert!(!services::mark_deleted(tx.conn(), DELETED, time(34)).await?);
            assert_eq!(services::revoke_all_keys(tx.conn(), DELETED, time(33)).await?, 1);
            assert_eq!(services::revoke_all_keys(tx.conn(), DELETED, time(34)).await?, 0);
            assert!(!services::lock(tx.conn(), DELETED).await?);
            Ok(())
        })
        .await;
        let mut read = self.read().await;
        let conn = read.conn();
        let remaining = Service { name: name("deleted"), deleted_at: Some(time(33)), ..service.clone() };
        assert_eq!(services::find(conn, DELETED).await.unwrap(), Some(remaining));
        assert_eq!(services::find_live(conn, DELETED).await.unwrap(), None);
        assert_eq!(services::list(conn, Some(&service.owner), ALL).await.unwrap().total, 0);
        assert!(!quotas::service_quota_is_reached(conn, &service.owner, 1).await.unwrap());
        assert_eq!(roles::list(conn, DELETED).await.unwrap(), []);
        assert_eq!(roles::find(conn, DELETED, role.definition.id).await.unwrap(), None);
        assert!(!assignments::holds_role(conn, agent().id, DELETED, time(33)).await.unwrap());
        assert_eq!(assignments::find_only_service_with_role(conn, agent().id, time(33)).await.unwrap(), None);
        let listed = departures::list_services(conn, agent().id, time(33), ALL).await.unwrap();
        assert!(listed.items.iter().all(|item| item.service != DELETED), "{listed:?}");
        drop(read);
        self.rows_of_deleted_services_are_removed(&held, &role).await;
    }

    async fn rows_of_deleted_services_are_removed(&self, held: &Assignment, role: &Role) {
        let deleted = Deleted::Service(DELETED);
        let list_due = async |now| purge::list_due(self.read().await.conn(), time(now), 9).await.unwrap();
        assert_eq!((list_due(32).await, list_due(33).await), (vec![], vec![deleted]));
        let Assignment { agent, role: id, service, .. } = *held;
        let expected = RemainingAssignment { agent, service, role: id, name: role.definition.name.clone() };
        assert_eq!(purge::list_assignments(self.read().await.conn(), deleted, 9).await.unwrap(), [expected]);
        let margin = Duration::from_secs(10);
        self.commit(async |tx| {
            assert!(assignments::remove(tx.conn(), service, agent, id).await?.is_some());
            assert_eq!(purge::list_assignments(tx.conn(), deleted, 9).await?, []);
            assert_eq!(purge::delete_dependants(tx.conn(), deleted, 9).await?, 3);
            assert_eq!(purge::delete_dependants(tx.conn(), deleted, 9).await?, 0);
            purge::finish(tx.conn(), deleted, time(42), margin).await
        })
        .await;
        assert_eq!((list_due(42).await, list_due(43).await), (vec![], vec![deleted]));
        self.commit(async |tx| purge::finish(tx.conn(), deleted, time(43), margin).await).await;
        assert_eq!(list_due(99).await, []);
        // Leaves values for the test `every_column_was_written`.
        self.commit(async |tx| purge::finish(tx.conn(), deleted, time(42), margin).await).await;
    }
}
