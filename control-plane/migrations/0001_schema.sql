-- The schema for SQLite and PostgreSQL. Columns are TEXT or BIGINT. Ids and JSON are text, times (`..._at`, `..._until`, `..._from`,
-- `..._since`) are microseconds since the Unix epoch, and instead of a boolean there is the time since when it is true. Revisions are
-- numbers of committed changes. `docs/limits.md` says how much a client can store, and how long it is kept.

-- The deployment

-- One row: the control planes that share this database.
CREATE TABLE deployment (
    id BIGINT PRIMARY KEY,
    created_at BIGINT NOT NULL,
    -- Set if `--dev` created the database. Without `--dev`, a control plane then refuses it.
    dev_since BIGINT,
    -- The current master key, which encrypts private keys and secrets of webhooks. A control plane with another one is refused.
    master_key_fingerprint TEXT NOT NULL,
    -- The first master key, which names the deployment in Redis. NULL before the first rotation.
    first_master_key_fingerprint TEXT,
    -- 32 bytes in hex. The keys of agent hashes are derived from it.
    agent_hash_secret TEXT,
    -- Set in a database that must not be served as it is, and why: `backup`, `migrating` or `migrated` (to PostgreSQL).
    quarantined_at BIGINT,
    quarantine_reason TEXT,
    -- Differs in a PostgreSQL database that was restored from a dump.
    instance_fingerprint TEXT,
    -- When a control plane last checked that the database accepts writes.
    write_checked_at BIGINT
);

-- Master keys that still encrypt or authenticate rows, because the rotation to the current master key is not complete.
CREATE TABLE previous_master_keys (
    fingerprint TEXT PRIMARY KEY,
    replaced_at BIGINT NOT NULL
);

-- The keys that sign access tokens. A key is published, signs from one time until another, and is removed when the last token that it
-- signed has expired, or at once if it is revoked.
CREATE TABLE signing_keys (
    kid TEXT PRIMARY KEY,
    -- Uncompressed point, in hex.
    public_point TEXT NOT NULL,
    -- Encrypted with the master key. NULL once the key is removed.
    sealed_private TEXT,
    published_at BIGINT NOT NULL,
    -- NULL for the next key, as long as no rotation is requested.
    signs_from BIGINT,
    -- From when another key signs.
    retires_at BIGINT,
    -- The longest lifetime of a token that the key signed, in microseconds.
    token_lifetime BIGINT NOT NULL,
    removed_at BIGINT,
    -- Set, like `removed_at`, if somebody revoked the key.
    revoked_at BIGINT
);

-- Totals that are read often. Each is changed in the transaction that changes what it counts.
CREATE TABLE totals (
    name TEXT PRIMARY KEY,
    total BIGINT NOT NULL
);

-- A transaction that creates something for a person first locks the person's row here, so that concurrent requests cannot exceed a
-- quota.
CREATE TABLE quota_locks (
    owner_issuer TEXT NOT NULL,
    owner_subject TEXT NOT NULL,
    locked_at BIGINT NOT NULL,
    PRIMARY KEY (owner_issuer, owner_subject)
);

-- Responses to requests with an `Idempotency-Key`, so that a repeated request gets the same response.
CREATE TABLE idempotent_requests (
    -- A hash of the caller, the operation and the key.
    id TEXT PRIMARY KEY,
    -- A hash of the body. The same key with another body is refused.
    body_digest TEXT NOT NULL,
    response TEXT NOT NULL,
    completed_at BIGINT NOT NULL
);
CREATE INDEX idempotent_requests_by_age ON idempotent_requests (completed_at);

-- The change feed

-- One row: the position of the change feed.
CREATE TABLE feed (
    id BIGINT PRIMARY KEY,
    -- The revision of the newest change.
    revision BIGINT NOT NULL,
    -- No change above this revision was deleted.
    floor BIGINT NOT NULL,
    -- We refuse sessions that began below this revision, and challenges from before this time, because we do not know what became of
    -- them after the backup. NULL if the database was never restored.
    restored_at BIGINT,
    restored_revision BIGINT
);

-- What changed at which revision, for sidecars. The content is not here, but read when the change is sent.
CREATE TABLE changes (
    revision BIGINT NOT NULL,
    position BIGINT NOT NULL,
    facet TEXT NOT NULL,
    -- The id of what changed.
    subject TEXT NOT NULL,
    -- A service, '' for the services that accept unbound tokens, '-' for no service. NULL for all services.
    recipient TEXT,
    -- The trust score, the status and the cutoff of the agent as of the revision, joined with `|`. NULL if something else changed.
    agent_state TEXT,
    recorded_at BIGINT NOT NULL,
    PRIMARY KEY (revision, position)
);
-- The changes of one recipient in the order of the change feed. With outdated statistics, the planners would read the entries of all
-- recipients by the primary key, and discard most of them. The addition of 0 prevents that.
CREATE INDEX changes_of_recipient ON changes ((COALESCE(recipient, '*')), (revision + 0), position);
-- The newest change until a time, so that the time to raise the floor does not depend on the number of changes.
CREATE INDEX changes_by_time ON changes (recorded_at, revision);
-- Whether an access token was revoked: its change is the only record of it.
CREATE INDEX revoked_tokens ON changes (subject) WHERE facet = 'token';
-- Whether the roles of an agent at a service changed since a revision.
CREATE INDEX role_changes ON changes (subject, recipient, revision) WHERE facet = 'roles';
-- Whether the settings of a service changed since a revision: a sidecar that resumes needs a snapshot if its service may have begun to
-- accept unbound tokens since.
CREATE INDEX settings_changes ON changes (recipient, revision) WHERE facet = 'settings';

-- Agents

CREATE TABLE agents (
    id TEXT PRIMARY KEY,
    -- The human user that the agent belongs to. NULL for an agent of a public registration, and for a deleted agent.
    owner_issuer TEXT,
    owner_subject TEXT,
    email TEXT NOT NULL,
    name TEXT NOT NULL,
    public_key TEXT NOT NULL,
    public_key_hash TEXT NOT NULL,
    metadata TEXT NOT NULL,
    status TEXT NOT NULL,
    -- Sessions and tokens below this revision are refused.
    cutoff BIGINT NOT NULL,
    -- The trust score, in hundredths of a point.
    trust BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    last_seen_at BIGINT,
    -- The service of the last login that was for a service.
    last_service_id TEXT,
    -- Set if an identical registration returns another, older agent.
    superseded_at BIGINT,
    -- Set for a deleted agent. Its row remains until no session and no token can refer to it.
    deleted_at BIGINT,
    -- When background work next removes the rows that depend on a deleted agent. NULL if there is nothing to do.
    purge_at BIGINT,
    -- When other rows still referred to a deleted agent, so that its row could not be removed.
    referenced_at BIGINT
);
-- Identical registrations return one agent. Only the e-mail address distinguishes the registrants of public registrations.
CREATE UNIQUE INDEX agents_by_registration ON agents (public_key_hash, name, (COALESCE(owner_issuer, '')),
    (COALESCE(owner_subject, '')), (CASE WHEN owner_issuer IS NULL THEN email ELSE '' END))
    WHERE superseded_at IS NULL;
CREATE INDEX agents_by_key ON agents (public_key_hash, name, email);
-- The agents of a person; ids sort by creation time.
CREATE INDEX agents_by_owner ON agents (owner_issuer, owner_subject, id) WHERE owner_issuer IS NOT NULL;
CREATE INDEX agents_to_purge ON agents (purge_at) WHERE purge_at IS NOT NULL;
-- The deleted agents whose rows remain.
CREATE INDEX agents_to_remove ON agents ((COALESCE(referenced_at, deleted_at))) WHERE deleted_at IS NOT NULL;

-- The agents that a human user has deleted, for as long as they count for the quota. A row does not name the agent: the deletion of an
-- agent erases its owner.
CREATE TABLE agent_deletions (
    owner_issuer TEXT NOT NULL,
    owner_subject TEXT NOT NULL,
    deleted_at BIGINT NOT NULL,
    -- Number of agents that were deleted at this time.
    agents BIGINT NOT NULL,
    PRIMARY KEY (owner_issuer, owner_subject, deleted_at)
);
CREATE INDEX agent_deletions_by_time ON agent_deletions (deleted_at);

-- The agents of public registrations that have not logged in. An index of the agents by `last_seen_at` would be written at each login.
CREATE TABLE unused_agents (
    agent_id TEXT PRIMARY KEY,
    registered_at BIGINT NOT NULL
);
CREATE INDEX unused_agents_by_registration ON unused_agents (registered_at);

-- Services

CREATE TABLE services (
    id TEXT PRIMARY KEY,
    owner_issuer TEXT NOT NULL,
    owner_subject TEXT NOT NULL,
    name TEXT NOT NULL,
    -- The URLs under which clients reach the service, separated by spaces. NULL if there are none.
    resource_uris TEXT,
    -- Set if the service refuses tokens that are bound to no service.
    refuses_unbound_since BIGINT,
    -- The name of the files in which the service is declared (`countersign apply`), or NULL. The same in other tables.
    managed_by TEXT,
    created_at BIGINT NOT NULL,
    -- Set for a deleted service. Its row remains, because feedback and the audit log refer to its id.
    deleted_at BIGINT,
    -- When background work next removes the rows that depend on a deleted service. NULL if there is nothing to do.
    purge_at BIGINT
);
-- The services of a person; ids sort by creation time.
CREATE INDEX services_by_owner ON services (owner_issuer, owner_subject, id);
-- The services of a person that are not deleted, so that deleted services make no list and no count slower.
CREATE INDEX live_services_by_owner ON services (owner_issuer, owner_subject, id) WHERE deleted_at IS NULL;
-- The deleted services of a person, which count for the quota until some time after their deletion.
CREATE INDEX deleted_services_by_owner ON services (owner_issuer, owner_subject, deleted_at) WHERE deleted_at IS NOT NULL;
-- The services that are not deleted, for administrators.
CREATE INDEX live_services ON services (id) WHERE deleted_at IS NULL;
CREATE INDEX services_to_purge ON services (purge_at) WHERE purge_at IS NOT NULL;

-- Finds services by their resource URIs. A row of a deleted service counts as absent.
CREATE TABLE resource_uris (
    uri TEXT PRIMARY KEY,
    host TEXT NOT NULL,
    service_id TEXT NOT NULL REFERENCES services (id)
);
CREATE INDEX resource_uris_by_host ON resource_uris (host);
CREATE INDEX resource_uris_by_service ON resource_uris (service_id);

-- API keys.
CREATE TABLE service_keys (
    id TEXT PRIMARY KEY,
    service_id TEXT NOT NULL REFERENCES services (id),
    name TEXT NOT NULL,
    scope TEXT NOT NULL,
    secret_hash TEXT NOT NULL,
    managed_by TEXT,
    created_at BIGINT NOT NULL,
    revoked_at BIGINT
);
CREATE INDEX service_keys_by_service ON service_keys (service_id);
-- The API keys of a service; ids sort by creation time.
CREATE INDEX service_keys_by_age ON service_keys (service_id, id);
-- The API keys that count for a quota.
CREATE INDEX live_service_keys ON service_keys (service_id) WHERE revoked_at IS NULL;
-- The revoked API keys. Only the newest remain.
CREATE INDEX revoked_service_keys ON service_keys (service_id, revoked_at, id) WHERE revoked_at IS NOT NULL;

-- A service that its owner offers to another person, at most one offer for each service.
CREATE TABLE service_transfers (
    service_id TEXT PRIMARY KEY REFERENCES services (id),
    new_owner_issuer TEXT NOT NULL,
    new_owner_subject TEXT NOT NULL,
    offered_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL
);
-- The offers to a person; ids sort by creation time.
CREATE INDEX service_transfers_by_new_owner ON service_transfers (new_owner_issuer, new_owner_subject, service_id);
CREATE INDEX service_transfers_by_expiry ON service_transfers (expires_at);

-- The services that agents have used.
CREATE TABLE known_agents (
    agent_id TEXT NOT NULL REFERENCES agents (id),
    service_id TEXT NOT NULL REFERENCES services (id),
    -- The last login or refresh for the service, or verification of a token for it.
    contacted_at BIGINT NOT NULL,
    PRIMARY KEY (agent_id, service_id)
);
CREATE INDEX known_agents_by_contact ON known_agents (contacted_at);

-- The services that the owner of an agent has left: they cannot assign roles to the agent.
CREATE TABLE agent_departures (
    agent_id TEXT NOT NULL REFERENCES agents (id),
    service_id TEXT NOT NULL REFERENCES services (id),
    left_at BIGINT NOT NULL,
    -- 1 if the agent held a role then: only in this case may the owner read the name of the service.
    held_role BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (agent_id, service_id)
);
-- What depends on a deleted service.
CREATE INDEX agent_departures_by_service ON agent_departures (service_id);

-- Roles

CREATE TABLE roles (
    id TEXT PRIMARY KEY,
    service_id TEXT NOT NULL REFERENCES services (id),
    -- Unique in the service. The name of a deleted role is replaced, so that a new role can have it at once.
    name TEXT NOT NULL,
    description TEXT NOT NULL,
    -- A JSON array.
    permissions TEXT NOT NULL,
    managed_by TEXT,
    -- The name in an older token means another role.
    created_revision BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    -- Set for a deleted role. Its row remains until background work has removed its assignments.
    deleted_at BIGINT,
    -- The name that a deleted role had.
    deleted_name TEXT,
    UNIQUE (service_id, name)
);
CREATE INDEX roles_to_purge ON roles (deleted_at) WHERE deleted_at IS NOT NULL;

-- The roles that agents hold.
CREATE TABLE assignments (
    agent_id TEXT NOT NULL REFERENCES agents (id),
    role_id TEXT NOT NULL REFERENCES roles (id),
    service_id TEXT NOT NULL REFERENCES services (id),
    managed_by TEXT,
    assigned_at BIGINT NOT NULL,
    expires_at BIGINT,
    -- When an event reported the expiry.
    expiry_reported_at BIGINT,
    PRIMARY KEY (agent_id, role_id)
);
CREATE INDEX assignments_by_service ON assignments (service_id, agent_id);
CREATE INDEX assignments_by_role ON assignments (role_id);
-- The agents that hold a role, and the services at which an agent holds one.
CREATE INDEX assignments_of_role ON assignments (role_id, agent_id);
CREATE INDEX assignments_of_agent_by_service ON assignments (agent_id, service_id);
CREATE INDEX assignments_by_unreported_expiry ON assignments (expires_at) WHERE expires_at IS NOT NULL AND expiry_reported_at IS NULL;
CREATE INDEX assignments_by_reported_expiry ON assignments (expires_at) WHERE expiry_reported_at IS NOT NULL;

-- Sessions and tokens

-- A login and everything that is refreshed from it.
CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    -- A challenge, or a client assertion, begins at most one session.
    challenge_id TEXT NOT NULL UNIQUE,
    -- Without foreign keys, which would lock the row of the service at each login.
    agent_id TEXT NOT NULL,
    -- The service that the tokens are for. NULL for unbound tokens.
    service_id TEXT,
    -- The permissions that the client asked for, separated by spaces. NULL for a session that no scope narrows.
    scope TEXT,
    started_at BIGINT NOT NULL,
    started_revision BIGINT NOT NULL,
    -- The end of a session is also its expiry.
    expires_at BIGINT NOT NULL,
    ended_at BIGINT,
    -- The services for which the session has had tokens, separated by commas. An empty one stands for unbound tokens.
    audiences TEXT NOT NULL,
    -- The hash of what all refresh tokens of the session have in common, and the hash of the current one.
    refresh_common_hash TEXT NOT NULL,
    refresh_hash TEXT NOT NULL
);
-- The sessions of an agent. The ones that have not ended are next to each other, so that ended sessions make no login slower. The
-- index has all columns that a login reads.
CREATE INDEX sessions_of_agent ON sessions (agent_id, ended_at, started_at, id, expires_at);
CREATE INDEX sessions_by_expiry ON sessions (expires_at);

-- The audiences of the live tokens of an agent, which receive its changes: services, or '' for unbound tokens.
CREATE TABLE token_audiences (
    agent_id TEXT NOT NULL REFERENCES agents (id),
    service_id TEXT NOT NULL,
    -- When the last token of this audience expires.
    expires_at BIGINT NOT NULL,
    PRIMARY KEY (agent_id, service_id)
);
CREATE INDEX token_audiences_by_expiry ON token_audiences (expires_at);

-- Trust

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
-- The feedback of a service about an agent. Only the newest remains; ids sort by creation time.
CREATE INDEX trust_feedback_by_service ON trust_feedback (agent_id, service_id, id);

-- The rating that results from all feedback of a service about an agent.
CREATE TABLE trust_ratings (
    agent_id TEXT NOT NULL REFERENCES agents (id),
    service_id TEXT NOT NULL REFERENCES services (id),
    -- For how much feedback the rating counts, in millionths. It decays from `rated_at` on.
    weight BIGINT NOT NULL,
    -- Millionths of a point.
    mean BIGINT NOT NULL,
    rated_at BIGINT NOT NULL,
    PRIMARY KEY (agent_id, service_id)
);

-- Agents whose trust score changed, until the change feed contains it.
CREATE TABLE changed_trust_scores (
    agent_id TEXT PRIMARY KEY
);

-- Sidecars

-- The running control planes. A control plane deletes its row when it stops. Others delete the row if they take it for killed. Without
-- its row, a control plane confirms nothing.
CREATE TABLE control_planes (
    id TEXT NOT NULL PRIMARY KEY,
    -- When the process last wrote this row.
    seen_at BIGINT NOT NULL,
    -- The streams of the process contain all changes up to this revision that concern them.
    distributed_revision BIGINT NOT NULL
);

-- The sync streams of sidecars that may decide.
CREATE TABLE sidecars (
    service_id TEXT NOT NULL,
    -- The process of the sidecar, and one of the API keys in its settings: 16 random bytes in hex. Zeros stand for the sidecars that a
    -- restored database does not know.
    instance TEXT NOT NULL,
    -- The API key of the stream.
    key_id TEXT NOT NULL,
    -- The control plane with the stream, and the number of the stream in the process of the sidecar.
    control_plane_id TEXT NOT NULL,
    stream BIGINT NOT NULL,
    address TEXT NOT NULL,
    release TEXT NOT NULL,
    connected_at BIGINT NOT NULL,
    -- The sidecar decides with all changes up to this revision.
    applied_revision BIGINT NOT NULL,
    -- The newest change that concerns the sidecar.
    required_revision BIGINT NOT NULL,
    applied_at BIGINT,
    -- The last confirmation that was recorded. There can be later ones until the stream has ended.
    confirmed_at BIGINT,
    -- The stream had ended at this time.
    ended_at BIGINT,
    -- When the sidecar of an ended stream refuses all requests.
    expires_at BIGINT,
    -- The longest maximum staleness that any control plane has told the process, in microseconds.
    max_staleness BIGINT NOT NULL,
    PRIMARY KEY (service_id, instance)
);
CREATE INDEX sidecars_by_expiry ON sidecars (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX sidecars_by_control_plane ON sidecars (control_plane_id) WHERE ended_at IS NULL;

-- The audit log

-- A hash chain for each service, and one for what concerns no service. Entries are only ever added, or archived from the beginning.
CREATE TABLE audit_entries (
    -- The service, or `deployment`.
    chain TEXT NOT NULL,
    -- From 1, without a gap.
    sequence BIGINT NOT NULL,
    at BIGINT NOT NULL,
    action TEXT NOT NULL,
    -- Who did it: an API key, or a human user's subject at an issuer.
    actor_kind TEXT NOT NULL,
    actor_issuer TEXT,
    actor_id TEXT,
    -- The client address, and the id of the request.
    address TEXT,
    request_id TEXT,
    -- The agent, and the object of the action.
    agent_id TEXT,
    object_kind TEXT,
    object_id TEXT,
    -- A JSON object.
    details TEXT NOT NULL,
    -- The hash of the entry before; empty in the first entry.
    previous_hash TEXT NOT NULL,
    hash TEXT NOT NULL,
    -- A MAC of the hash, under a key that is not in the database. The same in the tables below.
    mac TEXT NOT NULL,
    PRIMARY KEY (chain, sequence)
);
CREATE INDEX audit_entries_by_time ON audit_entries ((at + 0), chain, sequence);
CREATE INDEX audit_entries_by_agent ON audit_entries (agent_id, at);
CREATE INDEX audit_entries_of_chain_by_time ON audit_entries (chain, at, sequence);

-- The end of each chain, so that it is noticed if the last entries are missing.
CREATE TABLE audit_heads (
    chain TEXT PRIMARY KEY,
    length BIGINT NOT NULL,
    hash TEXT NOT NULL,
    mac TEXT NOT NULL
);

-- The part of each chain that existed at the last rotation of the master key, authenticated with the new key.
CREATE TABLE audit_checkpoints (
    chain TEXT PRIMARY KEY,
    length BIGINT NOT NULL,
    -- The hash of the entry at this position.
    hash TEXT NOT NULL,
    mac TEXT NOT NULL
);

-- The beginning of each chain whose first entries were archived: their number, and the hash of the last one.
CREATE TABLE audit_floors (
    chain TEXT PRIMARY KEY,
    length BIGINT NOT NULL,
    hash TEXT NOT NULL,
    mac TEXT NOT NULL
);

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

-- Webhooks

CREATE TABLE webhook_targets (
    id TEXT PRIMARY KEY,
    -- The service whose events it receives; '' for the events of all services.
    service_id TEXT NOT NULL,
    url TEXT NOT NULL,
    -- The kinds of events that it receives, with a comma before and after each; '' for all kinds.
    events TEXT NOT NULL,
    description TEXT NOT NULL,
    -- Encrypted with the master key.
    secret TEXT NOT NULL,
    -- The secret before the last rotation, and until when it signs, too.
    previous_secret TEXT,
    previous_until BIGINT,
    managed_by TEXT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    -- Since when events are delivered to it, except for pauses because of its receiver.
    active_since BIGINT NOT NULL,
    paused_at BIGINT,
    disabled_at BIGINT,
    disabled_reason TEXT,
    -- Since when all attempts failed, and the last attempt.
    failing_since BIGINT,
    failed_at BIGINT,
    -- When it was deleted. Housekeeping then removes its deliveries, and at last this row.
    deleted_at BIGINT
);
CREATE INDEX webhook_targets_by_service ON webhook_targets (service_id);
-- Previous secrets that have expired.
CREATE INDEX webhook_targets_by_previous_secret ON webhook_targets (previous_until) WHERE previous_until IS NOT NULL;
-- Webhooks whose deliveries and rows are to be removed.
CREATE INDEX deleted_webhook_targets ON webhook_targets (deleted_at, id) WHERE deleted_at IS NOT NULL;

-- Events, from the transaction that emitted them until their fan-out. The unique index is the only one, because each login writes here:
-- PostgreSQL reads few rows by it even if it has no statistics of the table.
CREATE TABLE webhook_outbox (
    id TEXT NOT NULL,
    kind TEXT NOT NULL,
    -- The bytes that are sent.
    body TEXT NOT NULL,
    occurred_at BIGINT NOT NULL,
    -- Whose event it is: a service, or '' for the deployment.
    service_id TEXT NOT NULL
);
CREATE UNIQUE INDEX webhook_outbox_by_id ON webhook_outbox (id);

-- Events that some target receives. Ids sort by creation time.
CREATE TABLE webhook_events (
    id TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    -- The bytes that are sent.
    body TEXT NOT NULL,
    occurred_at BIGINT NOT NULL
);

-- An event on its way to a target: pending, delivered, or dead (given up).
CREATE TABLE webhook_deliveries (
    target_id TEXT NOT NULL,
    event_id TEXT NOT NULL,
    -- The next attempt. A lease moves it to the end of the lease. NULL if the delivery is delivered or dead.
    due_at BIGINT,
    attempts BIGINT NOT NULL,
    -- Set for a test event: when it was requested.
    test_requested_at BIGINT,
    delivered_at BIGINT,
    dead_since BIGINT,
    -- The last attempt.
    attempted_at BIGINT,
    response_status BIGINT,
    response_excerpt TEXT,
    failure TEXT,
    PRIMARY KEY (target_id, event_id)
);
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (target_id, due_at) WHERE due_at IS NOT NULL;
-- Retries, which are leased beside first attempts.
CREATE INDEX webhook_deliveries_again ON webhook_deliveries (target_id, due_at) WHERE due_at IS NOT NULL AND attempts > 0;
CREATE INDEX webhook_deliveries_tests ON webhook_deliveries (due_at) WHERE due_at IS NOT NULL AND test_requested_at IS NOT NULL;
-- The deliveries of a webhook by state; ids sort by creation time.
CREATE INDEX pending_webhook_deliveries ON webhook_deliveries (target_id, event_id) WHERE due_at IS NOT NULL;
CREATE INDEX delivered_webhook_deliveries ON webhook_deliveries (target_id, event_id) WHERE delivered_at IS NOT NULL;
CREATE INDEX dead_webhook_deliveries ON webhook_deliveries (target_id, event_id) WHERE dead_since IS NOT NULL;
-- The oldest delivery of all webhooks.
CREATE INDEX webhook_deliveries_by_event ON webhook_deliveries (event_id);

-- Failed logins of an agent at a service ('' for none) within a minute. Only the first ones emit an event each.
CREATE TABLE suppressed_bursts (
    agent_id TEXT NOT NULL,
    service_id TEXT NOT NULL,
    began_at BIGINT NOT NULL,
    -- Number of failed logins that emitted an event, and number of the others.
    emitted BIGINT NOT NULL,
    suppressed BIGINT NOT NULL,
    PRIMARY KEY (agent_id, service_id)
);
CREATE INDEX suppressed_bursts_by_beginning ON suppressed_bursts (began_at);
