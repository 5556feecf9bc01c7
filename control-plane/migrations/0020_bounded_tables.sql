-- Every table is bounded by a number of rows or by a time.

-- The feedback of a service about an agent, of which only the newest is kept; ids sort by creation time.
CREATE INDEX trust_feedback_by_service ON trust_feedback (agent_id, service_id, id);

-- The agents that a human user has deleted, for as long as they count for the quota. A row does not name the agent: the deletion
-- of an agent erases its owner.
CREATE TABLE agent_deletions (
    owner_issuer TEXT NOT NULL,
    owner_subject TEXT NOT NULL,
    deleted_at BIGINT NOT NULL,
    -- Number of agents that were deleted at this time.
    agents BIGINT NOT NULL,
    PRIMARY KEY (owner_issuer, owner_subject, deleted_at)
);

CREATE INDEX agent_deletions_by_time ON agent_deletions (deleted_at);

-- Set for a deleted agent whose row could not be removed at this time, because other rows referred to it.
ALTER TABLE agents ADD COLUMN referenced_at BIGINT;

-- The deleted agents. The previous version does not set `referenced_at`, so the index has an expression that it need not know.
CREATE INDEX agents_to_remove ON agents ((COALESCE(referenced_at, deleted_at))) WHERE deleted_at IS NOT NULL;

-- The agents of public registrations that have not logged in. An index of the agents by `last_seen_at` would be written at each
-- login.
CREATE TABLE unused_agents (
    agent_id TEXT PRIMARY KEY,
    registered_at BIGINT NOT NULL
);

CREATE INDEX unused_agents_by_registration ON unused_agents (registered_at);

-- The time of these agents begins with the newest entry of the audit log, so that an upgrade deletes none at once.
INSERT INTO unused_agents (agent_id, registered_at)
    SELECT id, COALESCE((SELECT MAX(at) FROM audit_links), created_at) FROM agents
    WHERE owner_issuer IS NULL AND last_seen_at IS NULL AND deleted_at IS NULL;
