-- The beginning of an audit chain whose first entries were archived: their number, the hash of the last one, and a MAC of both
-- under a key that is not in the database.
CREATE TABLE audit_floors (
    chain TEXT PRIMARY KEY,
    length BIGINT NOT NULL,
    hash TEXT NOT NULL,
    mac TEXT NOT NULL
);
