-- The services that the owner of an agent has left: they cannot assign roles to the agent.
CREATE TABLE agent_departures (
    agent_id TEXT NOT NULL REFERENCES agents (id),
    service_id TEXT NOT NULL REFERENCES services (id),
    left_at BIGINT NOT NULL,
    PRIMARY KEY (agent_id, service_id)
);
