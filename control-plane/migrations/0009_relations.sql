-- The relation "the agent is known to the service".
CREATE TABLE known_agents (
    agent_id TEXT NOT NULL REFERENCES agents (id),
    service_id TEXT NOT NULL REFERENCES services (id),
    -- Time of the latest login or refresh for the service, or of the latest verification of a token for it.
    contacted_at BIGINT NOT NULL,
    PRIMARY KEY (agent_id, service_id)
);

CREATE INDEX known_agents_by_contact ON known_agents (contacted_at);

CREATE INDEX sessions_by_agent ON sessions (agent_id, begun_at);

INSERT INTO known_agents (agent_id, service_id, contacted_at)
SELECT agent_id, service_id, MAX(begun_at) FROM sessions WHERE service_id IS NOT NULL GROUP BY agent_id, service_id;

-- The service of the agent's last login that was for a service.
ALTER TABLE agents ADD COLUMN last_service_id TEXT;

UPDATE agents SET last_service_id = (SELECT s.service_id FROM sessions s
    WHERE s.agent_id = agents.id AND s.service_id IS NOT NULL ORDER BY s.begun_at DESC, s.id DESC LIMIT 1);

-- The agents of a person; ids sort by creation time.
CREATE INDEX agents_by_owner ON agents (owner_issuer, owner_subject, id) WHERE owner_issuer IS NOT NULL;

-- Set for an agent that an identical registration does not return: another agent with the same registration is older.
ALTER TABLE agents ADD COLUMN superseded_at BIGINT;

UPDATE agents SET superseded_at = created_at WHERE owner_issuer IS NULL AND EXISTS (SELECT 1 FROM agents older
    WHERE older.public_key_hash = agents.public_key_hash AND older.name = agents.name AND older.email = agents.email
    AND older.owner_issuer IS NULL AND older.id < agents.id);

UPDATE agents SET superseded_at = created_at WHERE owner_issuer IS NOT NULL AND EXISTS (SELECT 1 FROM agents older
    WHERE older.public_key_hash = agents.public_key_hash AND older.name = agents.name
    AND older.owner_issuer = agents.owner_issuer AND older.owner_subject = agents.owner_subject
    AND older.id < agents.id);

-- Only the e-mail address distinguishes the registrants of public registrations.
CREATE UNIQUE INDEX agents_by_registration ON agents (public_key_hash, name, (COALESCE(owner_issuer, '')),
    (COALESCE(owner_subject, '')), (CASE WHEN owner_issuer IS NULL THEN email ELSE '' END))
    WHERE superseded_at IS NULL;

-- Whether the roles of an agent at a service changed since a revision.
CREATE INDEX role_changes ON changes (subject, service_id, revision) WHERE facet = 'roles';
