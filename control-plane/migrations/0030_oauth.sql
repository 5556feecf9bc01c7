-- The permissions that the client asked for, separated by spaces. NULL for a session that no scope narrows.
ALTER TABLE sessions ADD COLUMN scope TEXT;

-- The URLs under which clients reach the service, separated by spaces. NULL if there are none.
ALTER TABLE services ADD COLUMN resource_uris TEXT;

-- The services by their resource URIs. A row of a deleted service counts as absent.
CREATE TABLE resource_uris (
    uri TEXT PRIMARY KEY,
    host TEXT NOT NULL,
    service_id TEXT NOT NULL REFERENCES services (id)
);

CREATE INDEX resource_uris_by_host ON resource_uris (host);

CREATE INDEX resource_uris_by_service ON resource_uris (service_id);
