-- What was done for requests with an Idempotency-Key, so that it is done once and answered again.
CREATE TABLE idempotency (
  -- A hash of who asked for what under which key.
  id TEXT PRIMARY KEY,
  -- A hash of the body: the same key with another one is refused.
  body_digest TEXT NOT NULL,
  response TEXT NOT NULL,
  done_at BIGINT NOT NULL
);
CREATE INDEX idempotency_by_age ON idempotency (done_at);
