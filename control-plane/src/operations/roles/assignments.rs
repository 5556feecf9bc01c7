//! Assigns roles to agents and revokes them.
//!
//! A change locks its service until its commit, so the changes of one service follow each other. Those that wait are made together,
//! see [`request_batches`].

mod batch;

pub(in crate::operations) use batch::AssignmentChange;

use crate::{
    domain::{
        audit::{AuditAction, AuditedObject, Initiator, NewAuditEntry},
        change::Changed,
        text::ManagedBy,
    },
    operations::{Context, OperationError, request_batches},
};
use batch::NewState;
use countersign_identity::{AgentId, EventId, RoleId, RoleName, ServiceId, Timestamp};
use std::sync::Arc;

/// The role assignment to create.
#[derive(Debug, Clone)]
pub struct AssignmentRequest {
    /// Service that defines the role.
    pub service: ServiceId,
    /// Agent that gets the role.
    pub agent: AgentId,
    /// Role to assign.
    pub role: RoleId,
    /// Time of expiry; `None` for no expiry.
    pub expires_at: Option<Timestamp>,
    /// The name of the files that state the assignment; `None` leaves that of the existing assignment.
    pub managed_by: Option<ManagedBy>,
}

/// Assigns a role, or replaces the expiry of the existing assignment. The expiry is truncated to whole seconds, the resolution
/// of times in tokens.
pub async fn assign_role(
    context: &Arc<Context>,
    initiator: Initiator,
    request: AssignmentRequest,
) -> Result<Changed<()>, OperationError> {
    let AssignmentRequest { service, agent, role, expires_at, managed_by } = request;
    let new = NewState::Assigned { expires_at: expires_at.map(Timestamp::truncated_to_second), managed_by };
    let event = context.new_id(EventId::from_bits);
    let changed =
        request_batches::fulfill(context, service, AssignmentChange { initiator, agent, role, new, event }).await?;
    Ok(Changed { value: (), revision: changed.revision })
}

/// Revokes a role. Returns false if the agent did not hold the role.
pub async fn revoke_role(
    context: &Arc<Context>,
    initiator: Initiator,
    service: ServiceId,
    agent: AgentId,
    role: RoleId,
) -> Result<Changed<bool>, OperationError> {
    let (new, event) = (NewState::Revoked, context.new_id(EventId::from_bits));
    request_batches::fulfill(context, service, AssignmentChange { initiator, agent, role, new, event }).await
}

/// The audit entry for the end of an assignment, which ends what the entry `role.assigned` began.
pub(in crate::operations) fn role_revoked_entry(
    service: ServiceId,
    agent: AgentId,
    role: RoleId,
    name: &RoleName,
) -> NewAuditEntry {
    NewAuditEntry::for_service(service, AuditAction::RoleRevoked)
        .agent(agent)
        .object(AuditedObject::Role(role))
        .with_detail("name", name.as_str())
}
