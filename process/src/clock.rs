//! The only module that reads the system clock. All other code receives a [`Clock`] or a [`Timestamp`].

use countersign_identity::Timestamp;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A source of the current time, which tests replace.
pub trait Clock: Send + Sync + 'static {
    /// The wall-clock time, to compare with timestamps such as the expiry of a token.
    fn now(&self) -> Timestamp;

    /// The time since boot, suspend included, to measure ages and timeouts. Adjustments of the wall clock do not change it.
    fn since_boot(&self) -> Duration;

    /// Which boot [`Clock::since_boot`] counts from; `None` if it is unknown. Two processes can compare their times since boot only
    /// if they have the same boot id.
    fn boot_id(&self) -> Option<BootId> {
        None
    }
}

/// The random id of one boot of the operating system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BootId(pub u128);

/// The file in which Linux shows the boot id.
const BOOT_ID_FILE: &str = "/proc/sys/kernel/random/boot_id";

impl BootId {
    /// Parses 32 hexadecimal digits, with or without dashes.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.trim().replace('-', "");
        let is_id = digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_id { u128::from_str_radix(&digits, 16).ok().map(Self) } else { None }
    }
}

/// The clock of the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the only code that reads the wall clock")]
    fn now(&self) -> Timestamp {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_micros(i64::try_from(since_epoch.as_micros()).unwrap_or(i64::MAX))
    }

    fn since_boot(&self) -> Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
    }

    fn boot_id(&self) -> Option<BootId> {
        BootId::parse(&std::fs::read_to_string(BOOT_ID_FILE).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_id_is_that_of_the_running_system() {
        assert!(SystemClock.boot_id().is_some());
        assert_eq!(SystemClock.boot_id(), SystemClock.boot_id());
        assert_eq!(BootId::parse("00000000-0000-0000-0000-00000000000a\n"), Some(BootId(10)));
        for text in ["", "a", "0000000000000000000000000000000g", "+000000000000000000000000000000a"] {
            assert_eq!(BootId::parse(text), None, "{text}");
        }
    }
}
