-- The sessions of an agent. Those that have not ended are next to each other, so that ended sessions make no login slower. The index
-- has all columns that a login reads.
CREATE INDEX sessions_of_agent ON sessions (agent_id, ended_at, begun_at, id, expires_at);
