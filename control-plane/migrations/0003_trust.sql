-- What services think of agents: the history as told, and what it amounts to.

-- One row for each feedback.
CREATE TABLE trust_feedback (
  id TEXT PRIMARY KEY,
  agent_id TEXT NOT NULL REFERENCES agents (id),
  service_id TEXT NOT NULL REFERENCES services (id),
  -- Millionths of a point.
  score BIGINT NOT NULL,
  reason TEXT NOT NULL,
  metadata TEXT NOT NULL,
  created_at BIGINT NOT NULL
);
CREATE INDEX trust_feedback_by_agent ON trust_feedback (agent_id, created_at, id);

-- What all feedbacks of a service about an agent amount to: how many they count for, in millionths, and
-- their mean, in millionths of a point. Both fade from rated_at on.
CREATE TABLE trust_opinions (
  agent_id TEXT NOT NULL REFERENCES agents (id),
  service_id TEXT NOT NULL REFERENCES services (id),
  weight BIGINT NOT NULL,
  mean BIGINT NOT NULL,
  rated_at BIGINT NOT NULL,
  PRIMARY KEY (agent_id, service_id)
);

-- Agents whose trust changed and of whom sidecars have not been told yet.
CREATE TABLE trust_marks (
  agent_id TEXT PRIMARY KEY
);
