//! Round trips of agents, services, roles and assignments.

use super::{
    Registration, agent, assignment,
    credentials::{UNKNOWN_AGENT, UNKNOWN_SERVICE, login_query},
    description, managed_by, name, owner, role, service, time, whole_list,
};
use crate::{
    domain::{
        agent::{Agent, ServiceOfAgent},
        change::{Change, RevisionRange},
        credential::SecretHash,
        page::{ItemCount, ListPage, Page},
        resource_uri::ResourceUri,
        role::{Assignment, Role},
        service::{KeyScope, Service, ServiceKey},
        text::DisplayName,
    },
    store::{
        Conn,
        agents::{self, AgentState, RoleHolderFilter},
        assignments::{self, ManagedGrant},
        conformance::StoreFixture,
        departures,
        feed::RecipientFilter,
        known_agents, logins, resource_uris,
        roles::{self, HeldRole, RoleFate},
        services, token_audiences,
    },
};
use countersign_identity::{
    AgentId, AgentStatus, ApiKeyId, Permission, Revision, RoleDefinition, RoleGrant, RoleId, RoleName, ServiceId,
    StatusWithCutoff, TrustScore,
};

fn single_page<T, P>(items: Vec<T>) -> ListPage<T, P> {
    let total = ItemCount::exact(i64::try_from(items.len()).unwrap());
    ListPage { items, total, next: None }
}

fn api_key() -> ServiceKey {
    ServiceKey {
        id: ApiKeyId::from_bits(1),
        service: service().id,
        owner: service().owner,
        name: name("a key"),
        scope: KeyScope::Sync,
        managed_by: managed_by("key-files"),
        secret: SecretHash::from_store("hash of an API key".to_owned()),
        created_at: time(20),
        revoked_at: None,
    }
}

impl StoreFixture {
    pub async fn agents_return_what_was_written(&self) {
        let registration = Registration { owner: None, ..agent().registration };
        let public =
            Agent { id: AgentId::from_bits(2), registration, last_seen_at: None, last_service: None, ..agent() };
        self.commit(async |tx| {
            for agent in [&agent(), &public] {
                assert!(agents::insert(tx.conn(), agent).await?);
                let same_registration = Agent { id: AgentId::from_bits(90), ..agent.clone() };
                assert!(!agents::insert(tx.conn(), &same_registration).await?);
            }
            Ok(())
        })
        .await;
        let mut read = self.read().await;
        for expected in [agent(), public] {
            assert_eq!(agents::find(read.conn(), expected.id).await.unwrap(), Some(expected.clone()));
            let stored = agents::find_by_registration(read.conn(), &expected.registration).await.unwrap();
            assert_eq!(stored, Some(expected));
        }
        drop(read);
        self.agents_return_what_was_updated().await;
    }

    async fn agents_return_what_was_updated(&self) {
        let (id, trust, cutoff) = (agent().id, TrustScore::from_hundredths(4321).unwrap(), Revision::new(12));
        let since = self.current_revision().await;
        self.commit(async |tx| {
            assert!(agents::lock(tx.conn(), id).await?);
            assert!(!agents::lock(tx.conn(), AgentId::from_bits(99)).await?);
            agents::set_last_seen(tx.conn(), id, Some(ServiceId::from_bits(8)), time(10)).await?;
            agents::set_trust(tx.conn(), id, trust, time(11)).await?;
            agents::set_status(tx.conn(), id, AgentStatus::Active, cutoff, time(13)).await?;
            tx.record_change(Change::Status(id));
            tx.record_change(Change::Trust(id));
            // The feed has the state of the agent only for changes with a recipient, so record an audience.
            token_audiences::record(tx.conn(), id, None, self.first.now()).await
        })
        .await;
        let status = AgentStatus::Active;
        let (last_seen_at, last_service) = (Some(time(10)), Some(ServiceId::from_bits(8)));
        let updated = Agent { status, cutoff, trust, updated_at: time(13), last_seen_at, last_service, ..agent() };
        let until = self.current_revision().await;
        let mut read = self.read().await;
        assert_eq!(agents::find(read.conn(), id).await.unwrap(), Some(updated.clone()));
        let own = agents::list_by_owner(read.conn(), &owner("agent"), whole_list()).await.unwrap();
        assert_eq!(own, single_page(vec![updated]));
        assert_eq!(
            agents::list_by_owner(read.conn(), &owner("other"), whole_list()).await.unwrap(),
            single_page(vec![])
        );
        let changed = self.changed_data(RevisionRange { since, until }, None).await;
        let state = AgentState { agent: id, trust, status: StatusWithCutoff { status, cutoff } };
        assert!(changed.iter().any(|data| data.agent == Some(state)), "{changed:?}");
        assert!(changed.iter().all(|data| data.agent.is_none_or(|changed| changed == state)), "{changed:?}");
    }

    pub async fn services_return_what_was_written(&self) {
        let other = Service { id: ServiceId::from_bits(2), owner: owner("other"), accepts_unbound: true, ..service() };
        self.commit(async |tx| {
            services::insert(tx.conn(), &service()).await?;
            services::insert(tx.conn(), &other).await?;
            assert_eq!(services::lock(tx.conn(), other.id).await?, Some(other.clone()));
            assert_eq!(services::lock(tx.conn(), ServiceId::from_bits(99)).await?, None);
            Ok(())
        })
        .await;
        let mut read = self.read().await;
        for expected in [service(), other.clone()] {
            assert_eq!(services::find(read.conn(), expected.id).await.unwrap(), Some(expected.clone()));
            let listed = services::list(read.conn(), Some(&expected.owner), whole_list()).await.unwrap();
            assert_eq!(listed, single_page(vec![expected]));
        }
        assert_eq!(services::list(read.conn(), None, whole_list()).await.unwrap().items, [other, service()]);
        drop(read);

        let updated = Service { name: name("renamed"), accepts_unbound: true, ..service() };
        self.commit(async |tx| services::update(tx.conn(), &updated, time(22)).await).await;
        assert_eq!(services::find(self.read().await.conn(), service().id).await.unwrap(), Some(updated));
        // Later tests need the service as it was.
        self.commit(async |tx| {
            services::update(tx.conn(), &service(), time(23)).await?;
            resource_uris::replace(tx.conn(), &service()).await
        })
        .await;
        assert_eq!(services::find(self.read().await.conn(), service().id).await.unwrap(), Some(service()));
    }

    pub async fn resource_uris_find_their_service(&self) {
        let uri = |text| ResourceUri::parse(text).unwrap();
        let other = Service { id: ServiceId::from_bits(2), owner: owner("other"), ..service() };
        let mut read = self.read().await;
        let conn = read.conn();
        let found = async |conn: &mut Conn, text| resource_uris::find_service(conn, &uri(text)).await.unwrap();
        assert_eq!(found(conn, "https://a.example").await, Some(service().id));
        assert_eq!(found(conn, "https://b.example/mcp").await, Some(service().id));
        assert_eq!(found(conn, "https://b.example").await, None);
        let below = uri("https://b.example/other");
        assert!(resource_uris::has_other_owner(conn, &below, &other).await.unwrap());
        assert!(!resource_uris::has_other_owner(conn, &below, &service()).await.unwrap());
        assert!(!resource_uris::has_other_owner(conn, &uri("https://c.example"), &other).await.unwrap());
        drop(read);
        let fewer = Service { resource_uris: "https://a.example".to_owned().try_into().unwrap(), ..service() };
        self.commit(async |tx| resource_uris::replace(tx.conn(), &fewer).await).await;
        assert_eq!(found(self.read().await.conn(), "https://b.example/mcp").await, None);
    }

    pub async fn contacts_return_what_was_written(&self) {
        let (agent, service, other) = (agent().id, service().id, ServiceId::from_bits(2));
        self.commit(async |tx| {
            let conn = tx.conn();
            known_agents::record_contact(conn, agent, service, time(24)).await?;
            known_agents::record_contact(conn, agent, service, time(25)).await?;
            known_agents::record_contact(conn, agent, service, time(23)).await?;
            known_agents::record_contact(conn, AgentId::from_bits(2), other, time(28)).await
        })
        .await;
        let mut read = self.read().await;
        let conn = read.conn();
        assert_eq!(known_agents::find_contact(conn, agent, service).await.unwrap(), Some(time(25)));
        assert_eq!(known_agents::find_contact(conn, agent, other).await.unwrap(), None);
        let end = time(25).saturating_add(known_agents::KNOWN_FOR);
        let last_moment = end.saturating_sub(std::time::Duration::from_micros(1));
        for (service, now, expected) in
            [(service, time(25), true), (service, last_moment, true), (service, end, false), (other, time(25), false)]
        {
            assert_eq!(known_agents::is_known(conn, agent, service, now).await.unwrap(), expected);
        }
        drop(read);
        self.commit(async |tx| {
            let conn = tx.conn();
            assert_eq!(known_agents::FORGOTTEN.oldest_deletable(conn, end).await?, Some(end));
            assert_eq!(known_agents::FORGOTTEN.delete(conn, time(0), last_moment, 9).await?, 0);
            assert_eq!(known_agents::FORGOTTEN.delete(conn, end, end, 9).await?, 1);
            Ok(())
        })
        .await;
        let mut read = self.read().await;
        assert_eq!(known_agents::find_contact(read.conn(), agent, service).await.unwrap(), None);
        assert_eq!(
            known_agents::find_contact(read.conn(), AgentId::from_bits(2), other).await.unwrap(),
            Some(time(28))
        );
    }

    pub async fn api_keys_return_what_was_written(&self) {
        let (key, other_service) = (api_key(), ServiceId::from_bits(2));
        let revoked = ServiceKey { id: ApiKeyId::from_bits(2), scope: KeyScope::Full, ..api_key() };
        self.commit(async |tx| {
            services::insert_key(tx.conn(), &key).await?;
            services::insert_key(tx.conn(), &revoked).await?;
            assert!(!services::revoke_key(tx.conn(), other_service, revoked.id, time(21)).await?);
            assert!(services::revoke_key(tx.conn(), service().id, revoked.id, time(21)).await?);
            Ok(())
        })
        .await;
        let revoked = ServiceKey { revoked_at: Some(time(21)), ..revoked };
        let mut read = self.read().await;
        assert_eq!(services::find_key(read.conn(), key.id).await.unwrap(), Some(key.clone()));
        assert_eq!(services::find_key(read.conn(), revoked.id).await.unwrap(), None);
        let ids = [ApiKeyId::from_bits(99), revoked.id, key.id];
        assert_eq!(services::find_valid_keys(read.conn(), ids).await.unwrap(), [key.id].into());
        let listed = services::list_keys(read.conn(), service().id, whole_list()).await.unwrap();
        assert_eq!(listed, single_page(vec![revoked.clone(), key]));
        assert!(services::has_key(read.conn(), service().id, revoked.id).await.unwrap());
        assert!(!services::has_key(read.conn(), other_service, revoked.id).await.unwrap());
    }

    /// Must run when the service has one live API key, and one that was revoked at time 21.
    pub async fn oldest_revoked_keys_are_deleted(&self) {
        // The keys are in the order of their revocation, which differs from the order of their ids.
        let keys = [12, 11, 13].map(ApiKeyId::from_bits);
        self.commit(async |tx| {
            for (key, at) in keys.into_iter().zip(22..) {
                services::insert_key(tx.conn(), &ServiceKey { id: key, ..api_key() }).await?;
                assert!(services::revoke_key(tx.conn(), service().id, key, time(at)).await?);
            }
            for (kept, limit, left) in [(9, 9, 5), (2, 1, 4), (2, 9, 3)] {
                services::delete_oldest_revoked_keys(tx.conn(), service().id, kept, limit).await?;
                assert_eq!(services::list_keys(tx.conn(), service().id, whole_list()).await?.total.count, left);
            }
            let kept = services::list_keys(tx.conn(), service().id, whole_list()).await?.items;
            assert_eq!(kept.iter().map(|key| key.id).collect::<Vec<_>>(), [keys[2], keys[1], api_key().id]);
            Ok(())
        })
        .await;
    }

    pub async fn roles_return_what_was_written(&self) {
        let id = RoleId::from_bits(2);
        let definition = RoleDefinition { id, name: "other-role".to_owned().try_into().unwrap(), ..role().definition };
        let other = Role { definition, created_at: time(30), ..role() };
        let mut same_name = role();
        same_name.definition.id = RoleId::from_bits(3);
        self.commit(async |tx| {
            assert!(roles::insert(tx.conn(), &role()).await?);
            assert!(!roles::insert(tx.conn(), &same_name).await?);
            assert!(roles::insert(tx.conn(), &other).await?);
            Ok(())
        })
        .await;
        let mut read = self.read().await;
        assert_eq!(roles::find(read.conn(), service().id, role().definition.id).await.unwrap(), Some(role()));
        assert_eq!(roles::find(read.conn(), ServiceId::from_bits(2), role().definition.id).await.unwrap(), None);
        assert_eq!(roles::list(read.conn(), service().id).await.unwrap(), [role(), other.clone()]);
        drop(read);

        let mut updated = Role { description: description("updated"), ..role() };
        updated.definition.permissions = vec![Permission::try_from("write".to_owned()).unwrap()];
        self.commit(async |tx| {
            roles::update(tx.conn(), &updated).await?;
            let (service, wrong, other) = (service().id, ServiceId::from_bits(2), other.definition.id);
            assert!(!roles::mark_deleted(tx.conn(), wrong, other, "deleted-1", time(34)).await?);
            assert!(roles::mark_deleted(tx.conn(), service, other, "deleted-1", time(34)).await?);
            assert!(!roles::mark_deleted(tx.conn(), service, other, "deleted-2", time(35)).await?, "it is deleted");
            Ok(())
        })
        .await;
        let mut read = self.read().await;
        assert_eq!(roles::list(read.conn(), service().id).await.unwrap(), [updated]);
        assert_eq!(roles::find(read.conn(), service().id, other.definition.id).await.unwrap(), None);
        let fate = |name: &RoleName, deleted_at| RoleFate { name: name.clone(), deleted_at, service_deleted_at: None };
        for (id, expected) in [
            (role().definition.id, Some(fate(&role().definition.name, None))),
            (other.definition.id, Some(fate(&other.definition.name, Some(time(34))))),
            (RoleId::from_bits(99), None),
        ] {
            assert_eq!(roles::find_fate(read.conn(), id).await.unwrap(), expected);
        }
        drop(read);
        self.assignments_of_deleted_roles_count_nowhere(other.definition.id).await;
    }

    pub async fn assignments_return_what_was_written(&self) {
        let Assignment { agent, role, service, expires_at, .. } = assignment();
        let grant = RoleGrant { role, until: expires_at };
        let since = self.current_revision().await;
        self.commit(async |tx| {
            assignments::upsert(tx.conn(), &assignment()).await?;
            tx.record_change(Change::Roles(agent, service));
            Ok(())
        })
        .await;
        let until = self.current_revision().await;
        let mut read = self.read().await;
        let conn = read.conn();
        let agents = [UNKNOWN_AGENT, agent];
        let managed = ManagedGrant { grant, managed_by: assignment().managed_by };
        // The assignment ends at 7.
        for (now, live_grant) in [(time(6), Some(grant)), (time(7), None)] {
            let grants: Vec<_> = live_grant.into_iter().collect();
            assert_eq!(assignments::list_active_grants(conn, service, agent, now).await.unwrap(), grants);
            let definition = roles::find(conn, service, role).await.unwrap().unwrap().definition;
            let held: Vec<_> =
                live_grant.map(|grant| HeldRole { definition, until: grant.until }).into_iter().collect();
            let (other_agent, other_service) = (UNKNOWN_AGENT, UNKNOWN_SERVICE);
            // The audience is the service that the query names. If it names none, the audience is the service of the last login if
            // the agent holds a role there, or else the only service where it holds one.
            let default = live_grant.map(|_| service);
            for (agent, named, last, audience) in [
                (agent, Some(service), None, Some(service)),
                (agent, None, Some(service), default),
                (agent, None, Some(other_service), default),
                (agent, None, None, default),
                (agent, Some(other_service), Some(service), Some(other_service)),
                (other_agent, None, Some(service), None),
                (other_agent, Some(service), None, Some(service)),
            ] {
                self.commit(async |tx| agents::set_last_seen(tx.conn(), agent, last, time(10)).await).await;
                let query = login_query(agent, named);
                let basis = logins::read(self.read().await.conn(), &query, now).await.unwrap();
                let holds_roles = agent != other_agent && audience == Some(service);
                let roles = if holds_roles { held.clone() } else { vec![] };
                assert_eq!((basis.audience, basis.roles), (audience, roles), "{named:?} {last:?}");
                assert_eq!(basis.has_service, audience == Some(service));
            }
            let grants: Vec<_> = live_grant.map(|_| (agent, managed.clone())).into_iter().collect();
            assert_eq!(assignments::list_active_grants_of_agents(conn, service, &agents, now).await.unwrap(), grants);
        }
        let of_service = RecipientFilter { service, includes_unbound: false };
        let changed = self.changed_data(RevisionRange { since, until }, Some(of_service)).await;
        let found: Vec<_> = changed.iter().filter(|data| data.entry.change == Change::Roles(agent, service)).collect();
        assert!(!found.is_empty() && found.iter().all(|data| *data.grants == [grant]), "{changed:?}");
        let active = RoleHolderFilter { service, role: Some(role), status: Some(AgentStatus::Active), now: time(6) };
        let suspended = RoleHolderFilter { status: Some(AgentStatus::Suspended), ..active };
        for (filter, holders) in [(active, vec![agent]), (suspended, vec![])] {
            let listed = agents::list_role_holders(conn, &filter, whole_list()).await.unwrap();
            assert_eq!(listed.items.iter().map(|agent| agent.id).collect::<Vec<_>>(), holders);
            assert_eq!(listed.total.count, i64::try_from(holders.len()).unwrap());
        }
        drop(read);
        self.departures_return_what_was_written().await;
        self.expiry_is_reported_once().await;
        self.lists_of_rows_are_written_and_read_whole().await;
    }

    /// The agent holds a role at one service until time 7, and its owner makes it leave two services.
    pub async fn departures_return_what_was_written(&self) {
        let (agent, service, other) = (agent().id, service().id, ServiceId::from_bits(2));
        let entry =
            |service, name: Option<DisplayName>, left_at, roles| ServiceOfAgent { service, name, left_at, roles };
        let held = || vec![(super::role().definition.name, Some(time(7)))];
        let list = async |now, page| {
            departures::list_services(self.read().await.conn(), agent, time(now), page).await.unwrap()
        };
        let first = |left_at, roles| entry(service, Some(super::service().name), left_at, roles);
        assert_eq!(list(6, whole_list()).await, single_page(vec![first(None, held())]));
        assert_eq!(list(7, whole_list()).await, single_page(vec![]));
        self.commit(async |tx| {
            assert!(departures::insert(tx.conn(), agent, service, true, time(29)).await?); // it held a role there
            assert!(!departures::insert(tx.conn(), agent, service, false, time(30)).await?);
            assert!(departures::insert(tx.conn(), agent, other, false, time(31)).await?);
            assert!(departures::contains(tx.conn(), agent, other).await?);
            assert!(!departures::contains(tx.conn(), AgentId::from_bits(2), other).await?);
            Ok(())
        })
        .await;
        let second = || entry(other, None, Some(time(31)), vec![]);
        assert_eq!(list(6, whole_list()).await, single_page(vec![second(), first(Some(time(29)), held())]));
        for (offset, after) in [(1, None), (1, Some(other))] {
            let page = list(6, Page { limit: 1, offset, after }).await;
            assert_eq!((page.items, page.total.count, page.next), (vec![first(Some(time(29)), held())], 2, None));
        }
        assert_eq!(list(6, Page { limit: 1, offset: 0, after: None }).await.next, Some(other));
        self.commit(async |tx| {
            assert!(departures::delete(tx.conn(), agent, other).await?);
            assert!(!departures::delete(tx.conn(), agent, other).await?);
            Ok(())
        })
        .await;
        assert_eq!(list(7, whole_list()).await, single_page(vec![first(Some(time(29)), vec![])]));
    }
}
