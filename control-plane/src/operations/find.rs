//! Finds the agent, service or role that a request names, or returns the error that it does not exist.

use super::{NotFound, OperationError};
use crate::{
    domain::{agent::Agent, role::Role, service::Service},
    store::{Conn, WriteTransaction, agents, roles, services},
};
use countersign_identity::{AgentId, RoleId, ServiceId};

pub(super) async fn find_agent(conn: &mut Conn, agent: AgentId) -> Result<Agent, OperationError> {
    Ok(agents::find(conn, agent).await?.ok_or(NotFound::Agent)?)
}

/// Finds a service that is not deleted.
pub(super) async fn find_service(conn: &mut Conn, service: ServiceId) -> Result<Service, OperationError> {
    Ok(services::find_live(conn, service).await?.ok_or(NotFound::Service)?)
}

pub(super) async fn find_role(conn: &mut Conn, service: ServiceId, role: RoleId) -> Result<Role, OperationError> {
    Ok(roles::find(conn, service, role).await?.ok_or(NotFound::Role)?)
}

/// Finds an agent and locks it until the transaction ends.
pub(super) async fn lock_agent(tx: &mut WriteTransaction, agent: AgentId) -> Result<Agent, OperationError> {
    agents::lock(tx.conn(), agent).await?;
    find_agent(tx.conn(), agent).await
}

/// Finds a service and locks it until the transaction ends.
pub(super) async fn lock_service(tx: &mut WriteTransaction, service: ServiceId) -> Result<Service, OperationError> {
    Ok(services::lock(tx.conn(), service).await?.ok_or(NotFound::Service)?)
}
