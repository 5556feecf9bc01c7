//! Round trip of the roles for the grants of unbound tokens.

use super::{agent, assignment, owner, role, service, time};
use crate::{
    domain::{
        agent::{Agent, Registration},
        resource_uri::ResourceUris,
        role::{Assignment, Role},
        service::Service,
        unbound_roles::RoleAtService,
    },
    store::{
        Conn, StoreError, WriteTransaction, agents, assignments,
        conformance::StoreFixture,
        known_agents::{self, KNOWN_FOR},
        roles, services, unbound_roles,
    },
};
use countersign_identity::{AgentId, RoleDefinition, RoleGrant, RoleId, ServiceId, Timestamp};

const AGENT: AgentId = AgentId::from_bits(300);

const NOW: Timestamp = time(100_000_000);

/// A service of a stranger that accepts unbound tokens.
fn stranger(number: u128) -> Service {
    let resource_uris = ResourceUris::default();
    Service {
        id: ServiceId::from_bits(number),
        owner: owner("stranger"),
        accepts_unbound: true,
        resource_uris,
        ..service()
    }
}

/// Role `number` at a service.
fn role_at(service: &Service, number: u128) -> Role {
    let id = RoleId::from_bits(service.id.bits() * 100 + number);
    let name = format!("role {number}").try_into().unwrap();
    Role { definition: RoleDefinition { id, name, ..role().definition }, service: service.id, ..role() }
}

/// A permanent assignment of a role.
fn held(role: &Role) -> Assignment {
    Assignment { agent: AGENT, role: role.definition.id, service: role.service, expires_at: None, ..assignment() }
}

/// Creates a service with roles, and assigns all of them.
async fn assign(conn: &mut Conn, service: &Service, count: u128) -> Result<(), StoreError> {
    services::insert(conn, service).await?;
    for number in 0..count {
        let role = role_at(service, number);
        assert!(roles::insert(conn, &role).await?);
        assignments::upsert(conn, &held(&role)).await?;
    }
    Ok(())
}

impl StoreFixture {
    /// Writes in a transaction that is rolled back.
    pub async fn unbound_tokens_contain_the_roles_of_the_first_services(&self) {
        let work = async |mut tx: WriteTransaction| {
            let conn = tx.conn();
            let registration =
                Registration { key_hash: "hash of the key of agent 300".to_owned(), ..agent().registration };
            assert!(agents::insert(conn, &Agent { id: AGENT, registration, ..agent() }).await?);
            assert_eq!(unbound_roles::list(conn, AGENT, NOW).await?, []);
            list_roles_of_many_services(conn).await?;
            Err(StoreError::AuditAfterRevision) // any error
        };
        let error = self.first.write::<(), _, _, _>("unbound_roles", work).await.unwrap_err();
        assert!(matches!(error, StoreError::AuditAfterRevision), "{error}");
    }
}

async fn list_roles_of_many_services(conn: &mut Conn) -> Result<(), StoreError> {
    let (known, own) = (stranger(305), Service { owner: owner("agent"), ..stranger(304) });
    let (forgotten, ends, had_many) = (stranger(306), stranger(309), stranger(311));
    let of_another = Service { owner: owner("another stranger"), created_at: time(200), ..stranger(312) };
    for (service, count) in [
        (&stranger(301), 1),
        (&stranger(302), 16),
        (&stranger(303), 17),
        (&own, 2),
        (&known, 1),
        (&forgotten, 1),
        (&Service { accepts_unbound: false, ..stranger(307) }, 1),
        (&Service { deleted_at: Some(time(3)), ..stranger(308) }, 1),
        (&ends, 3),
        (&stranger(310), 1),
        (&had_many, 64),
        (&of_another, 1),
    ] {
        assign(conn, service, count).await?;
    }
    known_agents::record_contact(conn, AGENT, known.id, NOW).await?;
    known_agents::record_contact(conn, AGENT, forgotten.id, NOW.saturating_sub(KNOWN_FOR)).await?;
    let until = NOW.saturating_add(KNOWN_FOR);
    end_at(conn, &ends, 0, NOW).await?;
    end_at(conn, &ends, 1, until).await?;
    for number in 0..63 {
        end_at(conn, &had_many, number, NOW).await?;
    }
    let (other, deleted) = (stranger(310).id, role_at(&stranger(310), 0).definition.id);
    assert!(roles::mark_deleted(conn, other, deleted, "deleted-310", NOW).await?);

    let permanent = |service: &Service, number| RoleAtService {
        service: service.id,
        grant: RoleGrant { role: role_at(service, number).definition.id, until: None },
    };
    let with_end = RoleGrant { until: Some(until), ..permanent(&ends, 1).grant };
    let of_second = stranger(302);
    let expected: Vec<_> = [permanent(&known, 0), permanent(&own, 0), permanent(&own, 1), permanent(&stranger(301), 0)]
        .into_iter()
        .chain([permanent(&of_another, 0)])
        .chain((0..16).map(|number| permanent(&of_second, number)))
        .chain([permanent(&forgotten, 0)])
        .chain([RoleAtService { service: ends.id, grant: with_end }, permanent(&ends, 2)])
        .collect();
    assert_eq!(unbound_roles::list(conn, AGENT, NOW).await?, expected);
    Ok(())
}

/// Gives the assignment of a role an end.
async fn end_at(conn: &mut Conn, service: &Service, number: u128, at: Timestamp) -> Result<(), StoreError> {
    let assignment = Assignment { expires_at: Some(at), ..held(&role_at(service, number)) };
    assignments::upsert(conn, &assignment).await.map(drop)
}
