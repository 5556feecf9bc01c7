//! The event `agent.role_revoked`.

use crate::{
    domain::webhook::event::{Event, EventData, RoleRevokedEvent},
    operations::Context,
    store::{WriteTransaction, assignments::RoleRevocation},
};
use countersign_identity::EventId;

/// Emits the event `agent.role_revoked`.
pub(in crate::operations) fn emit_role_revoked_event(
    tx: &mut WriteTransaction,
    context: &Context,
    revocation: RoleRevocation,
) {
    tx.emit(role_revoked_event(context.new_id(EventId::from_bits), revocation));
}

/// The event `agent.role_revoked` with this id.
pub(in crate::operations) fn role_revoked_event(id: EventId, revocation: RoleRevocation) -> Event {
    let RoleRevocation { agent: agent_id, service: service_id, role: role_id, name: role_name, at, reason } =
        revocation;
    let data = EventData::RoleRevoked(RoleRevokedEvent { agent_id, service_id, role_id, role_name, reason });
    Event { id, at, data }
}
