-- The running control planes. A row is deleted when the process stops, or some time after it was killed.
CREATE TABLE control_planes (
    id TEXT NOT NULL PRIMARY KEY,
    -- When the process last wrote this row.
    seen_at BIGINT NOT NULL,
    -- The streams of the process contain all changes up to this revision that concern them.
    distributed_revision BIGINT NOT NULL,
    -- When another process took it for killed, or it took another name. From then on, nothing is confirmed under this name, and the streams
    -- are ended.
    killed_at BIGINT
);

-- The sync streams of sidecars that may decide.
CREATE TABLE sidecars (
    -- The process of the sidecar: 16 random bytes in hex.
    instance TEXT NOT NULL,
    -- The place of the API key in the settings of the sidecar.
    key_index BIGINT NOT NULL,
    -- The API key of the stream.
    key_id TEXT NOT NULL,
    service_id TEXT NOT NULL,
    -- The control plane with the stream, and the number of the stream in the process of the sidecar.
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
    -- The last confirmation that was recorded. There can be later ones until the stream has ended. NULL if there was none for certain.
    confirmed_at BIGINT,
    -- The stream had ended at this time.
    ended_at BIGINT,
    -- When the sidecar of an ended stream refuses all requests.
    expires_at BIGINT,
    -- The longest that the process was ever told, in microseconds.
    max_staleness BIGINT NOT NULL,
    PRIMARY KEY (service_id, instance, key_index)
);

CREATE INDEX ended_sidecars_of_service ON sidecars (service_id, ended_at) WHERE ended_at IS NOT NULL;

CREATE INDEX sidecars_by_expiry ON sidecars (expires_at) WHERE expires_at IS NOT NULL;

CREATE INDEX sidecars_by_control_plane ON sidecars (control_plane_id) WHERE ended_at IS NULL;

-- Entries of audit chains about changes that sidecars must learn. When all sidecars decide with the changes, an entry of the chain
-- says so, and the row is deleted.
CREATE TABLE unconfirmed_changes (
    chain TEXT NOT NULL,
    -- 1: the sidecars are awaited, so later changes do not prolong the wait. 0: later changes are added.
    is_awaited BIGINT NOT NULL,
    -- The positions of the first and the last entry in the chain.
    first_sequence BIGINT NOT NULL,
    last_sequence BIGINT NOT NULL,
    -- When the first and the last change were made.
    first_changed_at BIGINT NOT NULL,
    changed_at BIGINT NOT NULL,
    -- The revision that is awaited, which contains all the changes.
    revision BIGINT,
    PRIMARY KEY (chain, is_awaited)
);
