//! Several control planes on one PostgreSQL and one Redis.

mod fleet;
mod redis;
