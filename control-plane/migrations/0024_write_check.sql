-- When a control plane last checked that the database accepts writes.
ALTER TABLE deployment ADD COLUMN write_checked_at BIGINT;
