//! Tests of the start and stop, the metrics, the database commands and the rotation of the master key of the control plane.

mod database;
mod housekeeping;
mod master_key;
mod metrics;
mod metrics_series;
mod output;
mod startup;
