//! The sliding-window rate limiter as a Lua script, which Redis runs atomically and with its own clock.

use super::connection::RedisConnection;
use crate::ephemeral::rate_limit::{CallerKind, QuotaStatus, RateLimit, RateLimitDecision};
use redis::{Cmd, ErrorKind, RedisError, RedisResult, Script, ServerErrorKind};
use std::time::Duration;

/// The rate limit script, and the prefix of its keys.
pub(super) struct RateLimitScript {
    script: Script,
    source: &'static str,
    key_prefix: String,
}

impl RateLimitScript {
    /// The rate limit script for keys with the prefix `key_prefix`.
    pub(super) fn new(key_prefix: &str) -> Self {
        let source = include_str!("sliding_window.lua");
        Self { script: Script::new(source), source, key_prefix: key_prefix.to_owned() }
    }

    /// Decides about a call, and counts it if `count_call` is set and every limit allows it.
    pub(super) async fn run(
        &self,
        connection: &mut RedisConnection,
        limits: &[RateLimit],
        count_call: bool,
    ) -> RedisResult<RateLimitDecision> {
        match self.run_for_all(connection, limits, count_call).await {
            // The slot of the keys is moving to another node, and some keys are still at the old one. So we ask for each key alone.
            Err(error) if limits.len() > 1 && error.kind() == ErrorKind::Server(ServerErrorKind::TryAgain) => {
                let decision = self.run_for_each(connection, limits, false).await?;
                if decision.allowed && count_call {
                    self.run_for_each(connection, limits, true).await
                } else {
                    Ok(decision)
                }
            }
            decision => decision,
        }
    }

    /// Sends one request for each limit. The call is allowed if every limit allows it.
    async fn run_for_each(
        &self,
        connection: &mut RedisConnection,
        limits: &[RateLimit],
        count_call: bool,
    ) -> RedisResult<RateLimitDecision> {
        let mut all = RateLimitDecision { allowed: true, statuses: Vec::with_capacity(limits.len()) };
        for limit in limits {
            let decision = self.run_for_all(connection, std::slice::from_ref(limit), count_call).await?;
            all.allowed &= decision.allowed;
            all.statuses.extend(decision.statuses);
        }
        Ok(all)
    }

    async fn run_for_all(
        &self,
        connection: &mut RedisConnection,
        limits: &[RateLimit],
        count_call: bool,
    ) -> RedisResult<RateLimitDecision> {
        let evalsha = self.command("EVALSHA", self.script.get_hash(), limits, count_call);
        let reply: Vec<i64> = match connection.send(&evalsha).await {
            // Redis does not know the script: it has restarted, or its script cache was flushed.
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                connection.send(&self.command("EVAL", self.source, limits, count_call)).await?
            }
            reply => reply?,
        };
        parse_reply(&reply, limits.len())
            .ok_or_else(|| RedisError::from((ErrorKind::Parse, "the rate-limit script returned an unexpected reply")))
    }

    /// The command that runs the script. Each key in Redis says whether the caller has proven who it is, or only claims it.
    fn command(&self, name: &str, script: &str, limits: &[RateLimit], count_call: bool) -> Cmd {
        let mut command = redis::cmd(name);
        command.arg(script).arg(limits.len());
        for RateLimit { key, .. } in limits {
            let kind = match key.caller {
                CallerKind::Authenticated | CallerKind::Agent => "proven",
                CallerKind::Unauthenticated => "claimed",
            };
            command.arg(format!("{}:{kind}:{}", self.key_prefix, hex::encode(key.digest)));
        }
        command.arg(u8::from(count_call));
        for RateLimit { quota, .. } in limits {
            command.arg(quota.max_calls).arg(u64::try_from(quota.window.as_micros()).unwrap_or(u64::MAX));
        }
        command
    }
}

fn parse_reply(reply: &[i64], limit_count: usize) -> Option<RateLimitDecision> {
    let (allowed, statuses) = reply.split_first()?;
    let statuses = statuses.chunks(2).map(|pair| {
        let [remaining, reset_after] = pair else { return None };
        let reset_after = Duration::from_micros(u64::try_from(*reset_after).ok()?);
        Some(QuotaStatus { remaining: u32::try_from(*remaining).ok()?, reset_after })
    });
    let statuses: Vec<_> = statuses.collect::<Option<_>>()?;
    (statuses.len() == limit_count).then_some(RateLimitDecision { allowed: *allowed == 1, statuses })
}
