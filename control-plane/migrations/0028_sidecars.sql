-- The running control planes. A row is deleted when the process stops, or some time after it was killed.
CREATE TABLE control_planes (
    id TEXT NOT NULL PRIMARY KEY,
    -- When the process last wrote this row.
    seen_at BIGINT NOT NULL,
    -- The streams of the process contain all changes up to this revision that concern them.
    distributed_revision BIGINT NOT NULL
);

-- The sync streams of sidecars that may decide.
CREATE TABLE sidecars (
    -- The process of the sidecar: 16 random bytes in hex.
    instance TEXT NOT NULL,
    key_id TEXT NOT NULL,
    service_id TEXT NOT NULL,
    -- The control plane with the stream, and the number of the stream there.
    control_plane_id TEXT NOT NULL,
    stream BIGINT NOT NULL,
    address TEXT NOT NULL,
    release TEXT NOT NULL,
    protocol_version BIGINT NOT NULL,
    connected_at BIGINT NOT NULL,
    -- The sidecar decides with all changes up to this revision.
    applied_revision BIGINT NOT NULL,
    -- The newest change that concerns the sidecar.
    required_revision BIGINT NOT NULL,
    applied_at BIGINT,
    -- The last confirmation was for a ping that was sent at this time or earlier. While the stream is open, there can be later ones.
    confirmed_at BIGINT,
    -- When the stream ended.
    ended_at BIGINT,
    -- When the sidecar of an ended stream refuses all requests.
    expires_at BIGINT,
    -- In microseconds.
    max_staleness BIGINT NOT NULL,
    PRIMARY KEY (instance, key_id)
);

CREATE INDEX sidecars_by_service ON sidecars (service_id, instance, key_id);

CREATE INDEX ended_sidecars_of_key ON sidecars (key_id, ended_at) WHERE ended_at IS NOT NULL;

CREATE INDEX sidecars_by_expiry ON sidecars (expires_at) WHERE expires_at IS NOT NULL;

CREATE INDEX sidecars_by_control_plane ON sidecars (control_plane_id) WHERE ended_at IS NULL;

-- Entries of audit chains about changes that sidecars must learn. When all sidecars decide with the changes, an entry of the chain
-- says so, and the row is deleted.
CREATE TABLE unconfirmed_changes (
    chain TEXT NOT NULL PRIMARY KEY,
    -- The positions of the first and the last entry in the chain.
    first_sequence BIGINT NOT NULL,
    last_sequence BIGINT NOT NULL,
    -- When the last change was made.
    changed_at BIGINT NOT NULL
);
