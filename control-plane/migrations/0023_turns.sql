-- Background jobs take turns between the owners of what they process, and read few rows, however many others there are.

-- Whose turn the removal of the assignments of a deleted role uses: the owner of its service at the time of the deletion.
ALTER TABLE roles ADD COLUMN purge_turn TEXT;

UPDATE roles SET purge_turn = (SELECT s.owner_issuer || ' ' || s.owner_subject FROM services s WHERE s.id = roles.service_id)
    WHERE deleted_at IS NOT NULL;

CREATE INDEX roles_to_purge_by_turn ON roles ((COALESCE(purge_turn, '*')), deleted_at) WHERE deleted_at IS NOT NULL;

CREATE INDEX services_to_purge_by_turn ON services ((owner_issuer || ' ' || owner_subject), purge_at) WHERE purge_at IS NOT NULL;

-- The owner of a deleted agent is erased. The empty text keeps the planners from reading all agents by the primary key.
CREATE INDEX agents_to_purge_by_turn ON agents ((id || ''), purge_at) WHERE purge_at IS NOT NULL;

-- The oldest delivery of all webhooks. Ids sort by creation time.
CREATE INDEX webhook_deliveries_by_event ON webhook_deliveries (event_id);

-- Webhooks whose deliveries and rows are to be removed.
CREATE INDEX deleted_webhook_targets ON webhook_targets (deleted_at, id) WHERE deleted_at IS NOT NULL;
