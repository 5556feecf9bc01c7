-- What a database knows of its own past: that it was restored from a backup, that it is one, that everything moved elsewhere.

-- Logins that began below this revision are dead, and so are challenges of before this instant: what became of them after
-- the backup was made is not known.
ALTER TABLE feed ADD COLUMN restored_at BIGINT;
ALTER TABLE feed ADD COLUMN restored_revision BIGINT;

-- Set in a database that must not be served as it is: in a copy (`backup`), or where everything moved elsewhere (`moved`).
ALTER TABLE deployment ADD COLUMN set_aside_at BIGINT;
ALTER TABLE deployment ADD COLUMN set_aside_as TEXT;

-- How PostgreSQL numbers the tables. In a database that was restored from a dump they have other numbers.
ALTER TABLE deployment ADD COLUMN table_numbers TEXT;
