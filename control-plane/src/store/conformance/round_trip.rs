//! Writes rows through the store, with a different value in every column, and reads them back. The round-trip tests fail if a
//! statement has a wrong parameter or two swapped parameters. They write through one store (`first`) and read through another one
//! (`second`) on the same database, so that nothing comes from memory.
//!
//! Some tables have no test here, such as the tables for idempotency keys and for bursts of failed logins: every use of them shows
//! in the API, so the tests of the API cover them.

mod audiences;
mod counts;
mod credentials;
mod deletions;
mod ended_roles;
mod recent_changes;
mod recipients;
mod records;
mod sidecars;
mod subjects;
mod unbound_roles;
mod webhooks;

use super::StoreFixture;
use crate::{
    domain::{
        agent::{Agent, Owner, Registration},
        change::{FeedEntry, RevisionRange},
        page::Page,
        role::{Assignment, Role},
        service::Service,
        text::{Description, DisplayName, ManagedBy, Metadata},
    },
    store::{
        ReadTransaction, StoreError, WriteTransaction,
        changed_data::{self, ChangedData, ReadLimit},
        feed::{self, RecipientFilter},
    },
};
use countersign_identity::{
    AgentId, AgentStatus, P256PublicKey, Permission, Revision, RoleDefinition, RoleId, ServiceId, Timestamp, TrustScore,
};
use serde_json::json;

const fn whole_list<P>() -> Page<P> {
    Page { limit: 100, offset: 0, after: None }
}

/// A time that differs for each number, so that each column has a different time.
const fn time(number: i64) -> Timestamp {
    Timestamp::from_seconds(1_000_000_000 + number)
}

fn name(text: &str) -> DisplayName {
    text.to_owned().try_into().unwrap()
}

#[expect(clippy::unnecessary_wraps, reason = "the field is optional")]
fn managed_by(text: &str) -> Option<ManagedBy> {
    Some(text.to_owned().try_into().unwrap())
}

fn description(text: &str) -> Description {
    text.to_owned().try_into().unwrap()
}

fn metadata(text: &str) -> Metadata {
    json!({ "note": text }).as_object().unwrap().clone().try_into().unwrap()
}

fn owner(name: &str) -> Owner {
    Owner { issuer: format!("https://{name}.example"), subject: format!("subject of {name}") }
}

fn public_key(number: u8) -> P256PublicKey {
    let secret = p256::SecretKey::from_slice(&[number; 32]).unwrap();
    P256PublicKey::from_sec1(&secret.public_key().to_sec1_bytes()).unwrap()
}

fn agent() -> Agent {
    Agent {
        id: AgentId::from_bits(1),
        registration: Registration {
            owner: Some(owner("agent")),
            email: "agent@example.org".to_owned().try_into().unwrap(),
            name: name("an agent"),
            key: public_key(1),
            key_hash: "hash of a key".to_owned(),
            metadata: metadata("of an agent"),
        },
        status: AgentStatus::Suspended,
        cutoff: Revision::new(2),
        trust: TrustScore::from_hundredths(1234).unwrap(),
        created_at: time(1),
        updated_at: time(2),
        last_seen_at: Some(time(3)),
        last_service: Some(ServiceId::from_bits(7)),
    }
}

fn service() -> Service {
    Service {
        id: ServiceId::from_bits(1),
        owner: owner("service"),
        name: name("a service"),
        accepts_unbound: false,
        resource_uris: "https://a.example https://b.example/mcp".to_owned().try_into().unwrap(),
        managed_by: managed_by("service-files"),
        created_at: time(4),
        deleted_at: None,
    }
}

fn role() -> Role {
    Role {
        definition: RoleDefinition {
            id: RoleId::from_bits(1),
            name: "a-role".to_owned().try_into().unwrap(),
            permissions: vec![Permission::try_from("read".to_owned()).unwrap()],
            created_revision: Revision::new(3),
        },
        service: service().id,
        description: description("of a role"),
        managed_by: managed_by("role-files"),
        created_at: time(5),
    }
}

fn assignment() -> Assignment {
    let expires_at = Some(time(7));
    Assignment {
        agent: agent().id,
        role: role().definition.id,
        service: service().id,
        assigned_at: time(6),
        expires_at,
        managed_by: managed_by("assignment-files"),
    }
}

impl StoreFixture {
    async fn commit<T>(&self, work: impl AsyncFn(&mut WriteTransaction) -> Result<T, StoreError>) -> T {
        let work = async |mut tx: WriteTransaction| {
            let value = work(&mut tx).await?;
            tx.commit(value).await
        };
        self.first.write("round_trip", work).await.unwrap()
    }

    async fn current_revision(&self) -> Revision {
        feed::position(self.read().await.conn()).await.unwrap().revision
    }

    /// The changes in a range of revisions. Checks that reads with any limit return the same changes.
    async fn changed_data(&self, range: RevisionRange, filter: Option<RecipientFilter>) -> Vec<ChangedData> {
        let mut results = Vec::new();
        for limit in [1, 2, 3, 1000] {
            let (mut changes, mut since) = (Vec::new(), range.since);
            while since < range.until {
                let range = RevisionRange { since, ..range };
                let limit = ReadLimit::entries(limit);
                let page = changed_data::read(self.read().await.conn(), range, filter, limit).await.unwrap();
                assert!(page.until > since && page.until <= range.until);
                changes.extend(page.changes);
                since = page.until;
            }
            results.push(changes);
        }
        assert!(results.iter().all(|changes| *changes == results[0]), "{results:?}");
        results.remove(0)
    }

    async fn changed_entries(&self, range: RevisionRange, filter: Option<RecipientFilter>) -> Vec<FeedEntry> {
        self.changed_data(range, filter).await.into_iter().map(|data| data.entry).collect()
    }

    async fn read(&self) -> ReadTransaction {
        self.second.read().await.unwrap()
    }

    /// The order matters: later functions use rows that earlier ones have written.
    pub async fn every_table_returns_what_was_written(&self) {
        self.agents_return_what_was_written().await;
        self.services_return_what_was_written().await;
        self.resource_uris_find_their_service().await;
        self.contacts_return_what_was_written().await;
        self.totals_and_quotas_return_what_was_written().await;
        self.api_keys_return_what_was_written().await;
        self.oldest_revoked_keys_are_deleted().await;
        self.roles_return_what_was_written().await;
        self.assignments_return_what_was_written().await;
        self.unbound_tokens_contain_the_roles_of_the_first_services().await;
        self.deleted_services_lose_what_depends_on_them().await;
        self.deleted_agents_keep_only_their_id().await;
        self.sessions_return_what_was_written().await;
        self.logins_read_what_was_written().await;
        self.refresh_tokens_return_what_was_written().await;
        self.sessions_begin_and_continue_if_nothing_changed().await;
        self.changes_go_to_live_audiences().await;
        self.signing_keys_return_what_was_written().await;
        self.deployment_returns_what_was_written().await;
        self.feed_returns_what_was_written().await;
        self.changes_contain_the_state_as_of_their_revision().await;
        self.feedback_returns_what_was_written().await;
        self.audit_log_returns_what_was_written().await;
        self.sealed_audit_chain_accepts_no_entry().await;
        self.webhook_targets_return_what_was_written().await;
        self.deliveries_return_what_was_written().await;
        self.unconfirmed_changes_return_what_was_written().await;
        self.sidecars_return_what_was_written().await;
        self.later_stream_of_a_sidecar_is_not_replaced().await;
        self.new_stream_of_a_sidecar_keeps_the_longest_staleness().await;
        self.unknown_sidecars_count_for_the_longest_known_staleness().await;
        self.streams_of_killed_control_planes_end().await;
        self.events_are_delivered_only_to_their_audience().await;
        self.recent_changes_are_found().await;
        self.revision_advances_past_the_clock_and_the_last_revision().await;
    }
}
