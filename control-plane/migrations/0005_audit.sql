-- Who did what: a chain of links for each service, and one for what concerns no service. Links are only ever added.

CREATE TABLE audit_links (
  -- The service, or `deployment`.
  chain TEXT NOT NULL,
  -- From 1, without a gap.
  sequence BIGINT NOT NULL,
  at BIGINT NOT NULL,
  act TEXT NOT NULL,
  -- Who did it: a key's id, or a person's subject at an issuer.
  actor_kind TEXT NOT NULL,
  actor_issuer TEXT,
  actor_id TEXT,
  -- From where, and by which request.
  address TEXT,
  request_id TEXT,
  -- To whom, and with what.
  agent_id TEXT,
  object_kind TEXT,
  object_id TEXT,
  details TEXT NOT NULL,
  -- The hash of the link before; of the first link, nothing.
  previous TEXT NOT NULL,
  hash TEXT NOT NULL,
  -- Of the hash, under a key that is not in the database.
  mac TEXT NOT NULL,
  PRIMARY KEY (chain, sequence)
);
CREATE INDEX audit_links_by_time ON audit_links (at, chain, sequence);
CREATE INDEX audit_links_by_agent ON audit_links (agent_id, at);

-- Where each chain ends, so that links missing at the end are missed.
CREATE TABLE audit_heads (
  chain TEXT PRIMARY KEY,
  length BIGINT NOT NULL,
  hash TEXT NOT NULL,
  mac TEXT NOT NULL
);
