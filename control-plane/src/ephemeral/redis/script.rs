//! The windows as one script, which Redis runs as a whole and by its own clock.

use super::place::Link;
use crate::ephemeral::{Count, Kind, Reading, Verdict};
use redis::{Cmd, ErrorKind, RedisError, RedisResult, Script, ServerErrorKind};
use std::time::Duration;

/// What is run, and where its keys are.
pub(super) struct Counting {
    script: Script,
    source: &'static str,
    tag: String,
}

impl Counting {
    /// For keys under this tag.
    pub(super) fn new(tag: &str) -> Self {
        let source = include_str!("windows.lua");
        Self { script: Script::new(source), source, tag: tag.to_owned() }
    }

    /// Takes one call out of each of these, or none; or looks.
    pub(super) async fn judge(&self, link: &mut Link, counts: &[Count], take: bool) -> RedisResult<Verdict> {
        let by_hash = self.command("EVALSHA", self.script.get_hash(), counts, take);
        let answer: Vec<i64> = match link.send(&by_hash).await {
            // It was started anew, or forgot.
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                link.send(&self.command("EVAL", self.source, counts, take)).await?
            }
            answer => answer?,
        };
        read(&answer, counts.len())
            .ok_or_else(|| RedisError::from((ErrorKind::Parse, "the windows' script answers otherwise")))
    }

    fn command(&self, verb: &str, script: &str, counts: &[Count], take: bool) -> Cmd {
        let mut command = redis::cmd(verb);
        command.arg(script).arg(counts.len());
        for Count { subject, .. } in counts {
            let kind = match subject.kind {
                Kind::Proven => "proven",
                Kind::Claimed => "claimed",
            };
            command.arg(format!("{}:{kind}:{}", self.tag, hex::encode(subject.digest)));
        }
        command.arg(u8::from(take));
        for Count { quota, .. } in counts {
            command.arg(quota.most).arg(u64::try_from(quota.window.as_micros()).unwrap_or(u64::MAX));
        }
        command
    }
}

fn read(answer: &[i64], counts: usize) -> Option<Verdict> {
    let (granted, readings) = answer.split_first()?;
    let readings = readings.chunks(2).map(|pair| {
        let [left, wait] = pair else { return None };
        Some(Reading { left: u32::try_from(*left).ok()?, wait: Duration::from_micros(u64::try_from(*wait).ok()?) })
    });
    let readings: Vec<_> = readings.collect::<Option<_>>()?;
    (readings.len() == counts).then_some(Verdict { granted: *granted == 1, readings })
}
