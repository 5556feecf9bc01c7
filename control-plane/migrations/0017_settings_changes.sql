-- Whether the settings of a service changed after a revision: a sidecar that resumes needs a snapshot if its service may have
-- begun to accept unbound tokens since.
CREATE INDEX settings_changes ON changes (service_id, revision) WHERE facet = 'terms';
