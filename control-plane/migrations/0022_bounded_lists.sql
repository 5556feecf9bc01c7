-- No page of a list reads rows in proportion to the number of rows that are stored.

-- The entries of an audit chain by time.
CREATE INDEX audit_links_of_chain_by_time ON audit_links (chain, at, sequence);

-- The agents that hold a role, and the services at which an agent holds one.
CREATE INDEX assignments_of_role ON assignments (role_id, agent_id);

CREATE INDEX assignments_of_agent_by_service ON assignments (agent_id, service_id);

-- The services that are not deleted, for administrators; ids sort by creation time.
CREATE INDEX live_services ON services (id) WHERE deleted_at IS NULL;
