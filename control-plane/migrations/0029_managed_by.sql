-- The name that whoever makes these things from files has given to what the files state. NULL for things that no file states.
ALTER TABLE service_keys ADD COLUMN managed_by TEXT;
ALTER TABLE services ADD COLUMN managed_by TEXT;
ALTER TABLE roles ADD COLUMN managed_by TEXT;
ALTER TABLE assignments ADD COLUMN managed_by TEXT;
ALTER TABLE webhook_targets ADD COLUMN managed_by TEXT;
