-- A login and a deletion write each index of a row. In indexes by agent, sessions that expire together are on different pages. This
-- migration has a transaction of its own, so that no table is locked for reads while the index of the previous one is built.

-- sessions_of_agent begins with the same column.
DROP INDEX live_sessions_by_agent;

DROP INDEX sessions_by_agent;

-- refresh_tokens_by_access_expiry begins with the same column.
DROP INDEX refresh_tokens_by_session;
