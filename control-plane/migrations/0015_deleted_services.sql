-- The deleted services of a person, newest first: they count for a quota until some time after their deletion.
CREATE INDEX deleted_services_by_owner ON services (owner_issuer, owner_subject, deleted_at) WHERE deleted_at IS NOT NULL;

-- Whether the agent held a role when its owner left the service: only then may the owner read the name of the service.
ALTER TABLE agent_departures ADD COLUMN held_role BIGINT NOT NULL DEFAULT 0;
