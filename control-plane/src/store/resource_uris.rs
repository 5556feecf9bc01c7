//! The table that finds services by their resource URIs. The list of a service is in the table of services.

use super::{Conn, StoreError, query::params, row, statements::statements};
use crate::domain::{agent::Owner, resource_uri::ResourceUri, service::Service};
use countersign_identity::ServiceId;

/// The resource URIs of services that are not deleted.
macro_rules! live_uris {
    () => {
        "FROM resource_uris r JOIN services s ON s.id = r.service_id AND s.deleted_at IS NULL"
    };
}

statements! { STATEMENTS:
    FIND_SERVICE = concat!("SELECT r.service_id AS id ", live_uris!(), " WHERE r.uri = $1");
    /// Whether a service of another owner has a resource URI of the same host.
    FIND_OTHER_OWNER = concat!(
        "SELECT 1 AS known ", live_uris!(), " WHERE r.host = $1 AND (s.owner_issuer <> $2 OR s.owner_subject <> $3) LIMIT 1"
    );
    DELETE_OF_SERVICE = "DELETE FROM resource_uris WHERE service_id = $1";
    /// If a deleted service still has a row with this URI, replaces the row.
    INSERT = "INSERT INTO resource_uris (uri, host, service_id) VALUES ($1, $2, $3) \
         ON CONFLICT (uri) DO UPDATE SET service_id = excluded.service_id";
}

/// The service that has a resource URI.
pub async fn find_service(conn: &mut Conn, uri: &ResourceUri) -> Result<Option<ServiceId>, StoreError> {
    conn.find_row(FIND_SERVICE, params![uri], |row| row::parse(row, "id")).await
}

/// Whether a service of another owner has a resource URI of the same host. The caller must hold the lock on the deployment.
pub async fn has_other_owner(conn: &mut Conn, uri: &ResourceUri, service: &Service) -> Result<bool, StoreError> {
    let Owner { issuer, subject } = &service.owner;
    conn.has_row(FIND_OTHER_OWNER, params![uri.host(), issuer, subject]).await
}

/// Replaces the resource URIs of a service. The caller must hold the lock on the deployment, and must have found that no other
/// service has one of them.
pub async fn replace(conn: &mut Conn, service: &Service) -> Result<(), StoreError> {
    delete(conn, service.id).await?;
    for uri in service.resource_uris.iter() {
        conn.apply(INSERT, params![uri, uri.host(), service.id]).await?;
    }
    Ok(())
}

/// Deletes the resource URIs of a service.
pub async fn delete(conn: &mut Conn, service: ServiceId) -> Result<(), StoreError> {
    conn.apply(DELETE_OF_SERVICE, params![service]).await
}
