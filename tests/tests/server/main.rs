//! Tests of the start and stop, the metrics and the database commands of the control plane.

mod database;
mod metrics;
mod metrics_series;
mod output;
mod startup;
