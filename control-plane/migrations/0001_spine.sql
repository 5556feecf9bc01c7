-- One schema for SQLite and PostgreSQL: TEXT and BIGINT only. Instants are microseconds since the Unix
-- epoch, JSON and ids are text, and instead of a boolean stands the instant since when.

-- One row: what belongs to this deployment as a whole.
CREATE TABLE deployment (
  id BIGINT PRIMARY KEY,
  made_at BIGINT NOT NULL,
  -- Of the master key that seals private keys: the wrong key is refused at the start.
  master_key_fingerprint TEXT NOT NULL,
  -- Set if --dev made it: then it is refused without --dev.
  dev_since BIGINT
);

-- One row: the revision of the newest change, and the one from which on nothing was forgotten.
CREATE TABLE feed (
  id BIGINT PRIMARY KEY,
  revision BIGINT NOT NULL,
  floor BIGINT NOT NULL
);

-- What changed at which revision, for followers to read up on. No content: that is read afresh.
CREATE TABLE changes (
  revision BIGINT NOT NULL,
  position BIGINT NOT NULL,
  facet TEXT NOT NULL,
  subject TEXT NOT NULL,
  service_id TEXT,
  noted_at BIGINT NOT NULL,
  PRIMARY KEY (revision, position)
);

CREATE TABLE signing_keys (
  kid TEXT PRIMARY KEY,
  public_point TEXT NOT NULL,
  sealed_private TEXT NOT NULL,
  published_at BIGINT NOT NULL,
  signs_from BIGINT NOT NULL,
  removed_at BIGINT
);

CREATE TABLE agents (
  id TEXT PRIMARY KEY,
  owner_issuer TEXT,
  owner_subject TEXT,
  email TEXT NOT NULL,
  name TEXT NOT NULL,
  public_key TEXT NOT NULL,
  public_key_hash TEXT NOT NULL,
  status TEXT NOT NULL,
  -- Tokens and logins below this revision are dead.
  cutoff BIGINT NOT NULL,
  -- Hundredths of a point.
  trust BIGINT NOT NULL,
  metadata TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL,
  last_seen_at BIGINT
);
CREATE INDEX agents_by_key ON agents (public_key_hash, name, email);

CREATE TABLE services (
  id TEXT PRIMARY KEY,
  owner_issuer TEXT NOT NULL,
  owner_subject TEXT NOT NULL,
  name TEXT NOT NULL,
  refuses_unbound_since BIGINT,
  created_at BIGINT NOT NULL
);

CREATE TABLE service_keys (
  id TEXT PRIMARY KEY,
  service_id TEXT NOT NULL REFERENCES services (id),
  name TEXT NOT NULL,
  scope TEXT NOT NULL,
  secret_hash TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  revoked_at BIGINT
);
CREATE INDEX service_keys_by_service ON service_keys (service_id);

CREATE TABLE roles (
  id TEXT PRIMARY KEY,
  service_id TEXT NOT NULL REFERENCES services (id),
  name TEXT NOT NULL,
  description TEXT NOT NULL,
  permissions TEXT NOT NULL,
  -- The revision at which it was made: older tokens speak of another role of that name.
  made_at_revision BIGINT NOT NULL,
  created_at BIGINT NOT NULL,
  UNIQUE (service_id, name)
);

CREATE TABLE assignments (
  agent_id TEXT NOT NULL REFERENCES agents (id),
  role_id TEXT NOT NULL REFERENCES roles (id),
  service_id TEXT NOT NULL REFERENCES services (id),
  assigned_at BIGINT NOT NULL,
  expires_at BIGINT,
  PRIMARY KEY (agent_id, role_id)
);
CREATE INDEX assignments_by_service ON assignments (service_id, agent_id);

-- A login and all that is refreshed from it.
CREATE TABLE sessions (
  id TEXT PRIMARY KEY,
  -- A challenge yields at most one login, by this constraint alone.
  challenge_id TEXT NOT NULL UNIQUE,
  agent_id TEXT NOT NULL REFERENCES agents (id),
  -- The service its tokens are for; none if it is bound to no service.
  service_id TEXT REFERENCES services (id),
  begun_at BIGINT NOT NULL,
  begun_revision BIGINT NOT NULL,
  expires_at BIGINT NOT NULL,
  ended_at BIGINT
);
CREATE INDEX sessions_by_expiry ON sessions (expires_at);

CREATE TABLE refresh_tokens (
  id TEXT PRIMARY KEY,
  session_id TEXT NOT NULL REFERENCES sessions (id),
  secret_hash TEXT NOT NULL,
  issued_at BIGINT NOT NULL,
  used_at BIGINT
);
CREATE INDEX refresh_tokens_by_session ON refresh_tokens (session_id);
