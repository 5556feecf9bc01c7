//! Tests of the network connections, the start and stop, the stop while something hangs, the metrics, the database commands, the turns of owners in the removal of what was deleted, and the rotation of the master key of the control plane.

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
