-- Where events are delivered to.
CREATE TABLE webhook_targets (
    id TEXT PRIMARY KEY,
    -- Whose events it gets; empty: those of all.
    service_id TEXT NOT NULL,
    url TEXT NOT NULL,
    -- The kinds of events it gets, with a comma before and after each; empty: all.
    events TEXT NOT NULL,
    description TEXT NOT NULL,
    -- Encrypted under the master key.
    secret TEXT NOT NULL,
    -- The secret of before the last rotation, and until when it signs too.
    previous_secret TEXT,
    previous_until BIGINT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    -- Since when events are delivered to it, but for pauses of its own receiver.
    active_since BIGINT NOT NULL,
    paused_at BIGINT,
    disabled_at BIGINT,
    disabled_reason TEXT,
    -- Since when nothing could be delivered, and when it was tried last.
    failing_since BIGINT,
    failed_at BIGINT,
    -- Since when its deliveries are being removed, and then it.
    deleted_at BIGINT
);

CREATE INDEX webhook_targets_by_service ON webhook_targets (service_id);

-- What happened, from its transaction until it is on its way to whoever asked for it, moments later. Without an index:
-- whoever logs in writes here.
CREATE TABLE webhook_outbox (
    id TEXT NOT NULL,
    kind TEXT NOT NULL,
    body TEXT NOT NULL,
    occurred_at BIGINT NOT NULL,
    -- Whom it concerns: a service, or else (empty) an agent.
    service_id TEXT NOT NULL,
    agent_id TEXT NOT NULL
);

-- What happened, and some target is told of. Ids sort by their making.
CREATE TABLE webhook_events (
    id TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    -- What is sent, to the byte.
    body TEXT NOT NULL,
    occurred_at BIGINT NOT NULL
);

-- An event on its way to a target.
CREATE TABLE webhook_deliveries (
    target_id TEXT NOT NULL,
    event_id TEXT NOT NULL,
    -- When it is tried next; whoever tries it moves this to when somebody else may. Absent: it is delivered or dead.
    due_at BIGINT,
    attempts BIGINT NOT NULL,
    -- When somebody asked for this test of the target.
    test_asked_at BIGINT,
    delivered_at BIGINT,
    dead_since BIGINT,
    -- The last try.
    attempted_at BIGINT,
    response_status BIGINT,
    response_excerpt TEXT,
    failure TEXT,
    PRIMARY KEY (target_id, event_id)
);

CREATE INDEX webhook_deliveries_due ON webhook_deliveries (target_id, due_at) WHERE due_at IS NOT NULL;

-- What was tried before, beside what was not.
CREATE INDEX webhook_deliveries_again ON webhook_deliveries (target_id, due_at) WHERE due_at IS NOT NULL AND attempts > 0;

CREATE INDEX webhook_deliveries_tests ON webhook_deliveries (due_at) WHERE due_at IS NOT NULL AND test_asked_at IS NOT NULL;

-- Failed logins of an agent at a service (or at none: empty) within a minute.
CREATE TABLE webhook_storms (
    agent_id TEXT NOT NULL,
    service_id TEXT NOT NULL,
    began_at BIGINT NOT NULL,
    told BIGINT NOT NULL,
    suppressed BIGINT NOT NULL,
    PRIMARY KEY (agent_id, service_id)
);

CREATE INDEX webhook_storms_by_beginning ON webhook_storms (began_at);

-- Roles that agents lost with the role itself, until webhooks are told: however many there are, nobody waits for it.
CREATE TABLE webhook_losses (
    agent_id TEXT NOT NULL,
    service_id TEXT NOT NULL,
    role_id TEXT NOT NULL,
    role_name TEXT NOT NULL,
    lost_at BIGINT NOT NULL,
    -- Whether it had ended before: expired; else role_deleted.
    reason TEXT NOT NULL,
    PRIMARY KEY (agent_id, role_id)
);

-- When webhooks were told that the assignment has ended.
ALTER TABLE assignments ADD COLUMN end_told_at BIGINT;

CREATE INDEX assignments_by_end ON assignments (expires_at) WHERE expires_at IS NOT NULL AND end_told_at IS NULL;
