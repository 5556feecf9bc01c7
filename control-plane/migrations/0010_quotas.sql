-- Totals that are read often. Each is changed in the transaction that changes what it counts.
CREATE TABLE totals (
    name TEXT PRIMARY KEY,
    total BIGINT NOT NULL
);

-- Whoever creates something for a person first locks the person's row here, so that concurrent requests cannot exceed a quota.
CREATE TABLE quota_locks (
    owner_issuer TEXT NOT NULL,
    owner_subject TEXT NOT NULL,
    locked_at BIGINT NOT NULL,
    PRIMARY KEY (owner_issuer, owner_subject)
);
