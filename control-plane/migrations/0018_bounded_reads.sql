-- No request and no background job reads rows in proportion to the number of rows that a tenant has stored.

-- Events of the outbox whose kind this version does not know, because a newer version emitted them. Each start tries them again.
-- They are not in the outbox, so that the fan-out reads its next events from the beginning of one index.
CREATE TABLE webhook_set_aside_events (
    id TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    body TEXT NOT NULL,
    occurred_at BIGINT NOT NULL,
    service_id TEXT NOT NULL,
    agent_id TEXT NOT NULL,
    set_aside_at BIGINT NOT NULL
);

-- The oldest waiting events. PostgreSQL reads few rows by a unique index even if it has no statistics of the table.
CREATE UNIQUE INDEX webhook_outbox_by_id ON webhook_outbox (id);

-- From now on, the end of a session is also its expiry, so that housekeeping deletes ended sessions as it deletes expired ones.
UPDATE sessions SET expires_at = ended_at WHERE ended_at < expires_at;

-- The live sessions of an agent, so that ended sessions make no login slower. The index has all columns that the login reads.
CREATE INDEX live_sessions_by_agent ON sessions (agent_id, begun_at, id, expires_at) WHERE ended_at IS NULL;

-- The audiences of the live tokens of a session, however often the session was refreshed.
CREATE INDEX refresh_tokens_by_access_expiry ON refresh_tokens (session_id, access_expires_at, audience);

-- The API keys of a service; ids sort by creation time.
CREATE INDEX service_keys_by_age ON service_keys (service_id, id);

-- The API keys that count for a quota.
CREATE INDEX live_service_keys ON service_keys (service_id) WHERE revoked_at IS NULL;

-- The revoked API keys of a service, of which only the newest are kept.
CREATE INDEX revoked_service_keys ON service_keys (service_id, revoked_at, id) WHERE revoked_at IS NOT NULL;

-- The deliveries of a webhook by state; ids sort by creation time.
CREATE INDEX pending_webhook_deliveries ON webhook_deliveries (target_id, event_id) WHERE due_at IS NOT NULL;

CREATE INDEX delivered_webhook_deliveries ON webhook_deliveries (target_id, event_id) WHERE delivered_at IS NOT NULL;

CREATE INDEX dead_webhook_deliveries ON webhook_deliveries (target_id, event_id) WHERE dead_since IS NOT NULL;
