-- Master keys that still encrypt or authenticate rows, because the rotation to the current master key is not complete.
CREATE TABLE previous_master_keys (
    fingerprint TEXT PRIMARY KEY,
    -- When another master key became current.
    replaced_at BIGINT NOT NULL
);

-- The part of each audit chain that existed at the last rotation of the master key, authenticated with the new key.
CREATE TABLE audit_checkpoints (
    chain TEXT PRIMARY KEY,
    length BIGINT NOT NULL,
    -- Hash of the entry at this position.
    hash TEXT NOT NULL,
    mac TEXT NOT NULL
);

-- Fingerprint of the first master key, which names the deployment in Redis; absent before the first rotation.
ALTER TABLE deployment ADD COLUMN first_master_key_fingerprint TEXT;
