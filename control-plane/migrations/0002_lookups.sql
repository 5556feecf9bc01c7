-- What is looked up by other than its first key.

-- A role that is deleted goes with all its assignments.
CREATE INDEX assignments_by_role ON assignments (role_id);

-- Whether an access token was revoked: its change is the memory of it. Of these changes only, so that who
-- reads what changed since a revision still finds it by the revision.
CREATE INDEX revoked_tokens ON changes (subject) WHERE facet = 'token';

-- The services of a person; ids sort by their making.
CREATE INDEX services_by_owner ON services (owner_issuer, owner_subject, id);
