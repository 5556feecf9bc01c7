-- The audiences of the live tokens of an agent: a service, or '' for unbound tokens.
CREATE TABLE token_audiences (
    agent_id TEXT NOT NULL REFERENCES agents (id),
    service_id TEXT NOT NULL,
    -- Time at which the last token of this audience expires.
    expires_at BIGINT NOT NULL,
    PRIMARY KEY (agent_id, service_id)
);

CREATE INDEX token_audiences_by_expiry ON token_audiences (expires_at);

-- The audience of the access token that was issued with the refresh token: a service, or '' for an unbound token. It is not
-- set if a previous version issued the tokens.
ALTER TABLE refresh_tokens ADD COLUMN audience TEXT;

ALTER TABLE refresh_tokens ADD COLUMN access_expires_at BIGINT;

CREATE INDEX refresh_tokens_without_audience ON refresh_tokens (issued_at) WHERE audience IS NULL;

-- In `changes`, `service_id` is the recipient: a service, '' for the services that accept unbound tokens, '-' for no service.
-- It is not set if all services are recipients.
CREATE INDEX changes_by_recipient ON changes (service_id, revision);

-- The secret from which the keys of agent hashes are derived, 32 bytes in hex.
ALTER TABLE deployment ADD COLUMN agent_hash_secret TEXT;
