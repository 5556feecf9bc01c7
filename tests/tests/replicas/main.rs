//! Tests of several control planes that share a PostgreSQL and a Redis.

mod fleet;
mod redis;
