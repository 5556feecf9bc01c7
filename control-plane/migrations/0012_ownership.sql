-- Set for a deleted service or agent. The row remains, because the audit log and feedback refer to its id.
ALTER TABLE services ADD COLUMN deleted_at BIGINT;

ALTER TABLE agents ADD COLUMN deleted_at BIGINT;

-- When housekeeping next removes the rows that depend on a deleted service or agent; absent if there is nothing to do.
ALTER TABLE services ADD COLUMN purge_at BIGINT;

ALTER TABLE agents ADD COLUMN purge_at BIGINT;

CREATE INDEX services_to_purge ON services (purge_at) WHERE purge_at IS NOT NULL;

CREATE INDEX agents_to_purge ON agents (purge_at) WHERE purge_at IS NOT NULL;

-- The services of a person that are not deleted, so that deleted services make no list and no count slower.
CREATE INDEX live_services_by_owner ON services (owner_issuer, owner_subject, id) WHERE deleted_at IS NULL;

-- What depends on a deleted service.
CREATE INDEX agent_departures_by_service ON agent_departures (service_id);
