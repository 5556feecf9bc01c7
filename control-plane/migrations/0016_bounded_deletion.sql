-- Set for a deleted role. Its row remains until background work has removed its assignments, however many there are.
ALTER TABLE roles ADD COLUMN deleted_at BIGINT;

-- The name that a deleted role had. Its column `name` contains a unique other name, so that a new role can have the name at once.
ALTER TABLE roles ADD COLUMN deleted_name TEXT;

CREATE INDEX roles_to_purge ON roles (deleted_at) WHERE deleted_at IS NOT NULL;

-- The newest change until a time, so that the time to raise the floor does not depend on the number of changes.
CREATE INDEX changes_by_time ON changes (noted_at, revision);

-- Expired assignments whose end was reported to webhooks.
CREATE INDEX assignments_by_reported_end ON assignments (expires_at) WHERE end_told_at IS NOT NULL;

-- Previous secrets that have expired.
CREATE INDEX webhook_targets_by_previous_secret ON webhook_targets (previous_until) WHERE previous_until IS NOT NULL;
