-- The trust score, the status and the cutoff of the agent as of the revision of the change, joined with `|`. NULL if the change
-- concerns something else, and if a control plane of the previous version wrote it.
ALTER TABLE changes ADD COLUMN agent_state TEXT;
