//! Tests of the server that an operator runs: connections, start and stop, settings, metrics, database commands, housekeeping, and
//! the rotation of the master key.

mod bounded_tables;
mod connections;
mod costs;
mod database;
mod ended_sessions;
mod full_ports;
mod housekeeping;
mod invalid_settings;
mod master_key;
mod metrics;
mod metrics_series;
mod monitoring;
mod output;
mod purge;
mod reload;
mod slow_clients;
mod startup;
mod stopping;
