-- The changes of one recipient in the order of the change feed. The addition of 0 keeps the planners from reading the entries of
-- all recipients by the primary key and discarding most of them: with outdated statistics, they would prefer that.
-- The index `changes_by_recipient` remains for control planes of the previous version.
CREATE INDEX changes_of_recipient ON changes ((COALESCE(service_id, '*')), (revision + 0), position);
