//! Tests of the HTTP API: all endpoints, their callers and their errors.

mod access;
mod agent_keys;
mod audit;
mod bad_input;
mod concurrent_role_changes;
mod contract;
mod deletion;
mod description;
mod disclosure;
mod endpoints;
mod humans;
mod idempotency;
mod known_agents;
mod limits;
mod listings;
mod long_lists;
mod own_agents;
mod proxies;
mod quotas;
mod revisions;
mod revocation;
mod roles_and_agents;
mod signatures;
mod single_use;
mod transfer;
mod trust;
