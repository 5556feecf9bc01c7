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

-- A service that its owner offers to another person, at most one offer for each service.
CREATE TABLE service_transfers (
    service_id TEXT PRIMARY KEY REFERENCES services (id),
    new_owner_issuer TEXT NOT NULL,
    new_owner_subject TEXT NOT NULL,
    offered_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL
);

-- The offers to a person; ids sort by creation time.
CREATE INDEX service_transfers_by_new_owner ON service_transfers (new_owner_issuer, new_owner_subject, service_id);

CREATE INDEX service_transfers_by_expiry ON service_transfers (expires_at);
