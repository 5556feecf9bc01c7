//! When a copy was last confirmed, by three clocks: the time since boot, the wall clock, and the clock of the control plane.
//!
//! Within a boot, we measure the age by the time since boot, because the wall clock may be changed. After a boot, or on another
//! machine, only the wall clock remains. Two wall clocks may differ, so such a copy counts as older by [`MAX_CLOCK_SKEW`].

use crate::{
    metrics::CopyRejection,
    view::{RestoredContact, ServerClock, View},
};
use countersign_identity::Timestamp;
use countersign_process::{BootId, Clock};
use std::time::Duration;

/// The largest difference that the wall clocks of two machines, or of two boots, may have.
const MAX_CLOCK_SKEW: Duration = Duration::from_mins(5);

/// The length of an encoded contact.
pub const CONTACT_LEN: usize = 48;

/// The last confirmation of a view: when the last answered ping was sent. At this time, the view was current.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contact {
    /// The boot of the system; `None` if it is unknown.
    pub boot: Option<BootId>,
    /// The time since boot.
    pub since_boot: Duration,
    /// The wall-clock time of the sidecar.
    pub wall: Timestamp,
    /// The time of the control plane, if it sends its time.
    pub server: Option<Timestamp>,
}

impl Contact {
    /// The last confirmation of a view; `None` if this process has not received one.
    pub fn of(view: &View, clock: &dyn Clock) -> Option<Self> {
        let since_boot = view.confirmed_at().filter(|_| !view.is_restored())?;
        let (boot_now, wall_now) = (clock.since_boot(), clock.now());
        let age = boot_now.saturating_sub(since_boot);
        let server = view.server_clock().map(|server| server.now(boot_now).saturating_sub(age));
        Some(Self { boot: clock.boot_id(), since_boot, wall: wall_now.saturating_sub(age), server })
    }

    /// The time since the confirmation.
    pub fn age(&self, clock: &dyn Clock) -> Result<Duration, CopyRejection> {
        if self.is_of_this_boot(clock) {
            return clock.since_boot().checked_sub(self.since_boot).ok_or(CopyRejection::Future);
        }
        let now = clock.now();
        if now < self.wall { Err(CopyRejection::Future) } else { Ok(now.duration_since(self.wall)) }
    }

    fn is_of_this_boot(&self, clock: &dyn Clock) -> bool {
        self.boot.is_some() && self.boot == clock.boot_id()
    }

    /// Converts the confirmation for a view that is used from now on. The error says why the view cannot be used.
    pub fn restore(&self, max_staleness: Duration, clock: &dyn Clock) -> Result<RestoredContact, CopyRejection> {
        let elapsed = self.age(clock)?;
        let age = if self.is_of_this_boot(clock) { elapsed } else { elapsed + MAX_CLOCK_SKEW };
        if age >= max_staleness {
            return Err(CopyRejection::TooOld);
        }
        let since_boot = clock.since_boot();
        // `MAX_CLOCK_SKEW` is not added here: the clock of the control plane would be fast, and tokens would expire too early.
        let server_clock = self.server.map(|time| ServerClock::new(time.saturating_add(elapsed), since_boot));
        Ok(RestoredContact { age, since_boot, server_clock })
    }

    /// The fields as big-endian numbers. The boot 0 and the lowest possible time of the control plane stand for unknown ones.
    pub fn to_bytes(self) -> [u8; CONTACT_LEN] {
        let Self { boot, since_boot, wall, server } = self;
        let mut bytes = [0; CONTACT_LEN];
        let parts: [&[u8]; 5] = [
            &boot.map_or(0, |boot| boot.0).to_be_bytes(),
            &since_boot.as_secs().to_be_bytes(),
            &u64::from(since_boot.subsec_nanos()).to_be_bytes(),
            &wall.micros().to_be_bytes(),
            &server.map_or(i64::MIN, Timestamp::micros).to_be_bytes(),
        ];
        bytes.copy_from_slice(&parts.concat());
        bytes
    }

    pub fn from_bytes(bytes: &[u8; CONTACT_LEN]) -> Option<Self> {
        let number = |start: usize| bytes.get(start..start + 8)?.try_into().ok().map(u64::from_be_bytes);
        let signed = |start: usize| bytes.get(start..start + 8)?.try_into().ok().map(i64::from_be_bytes);
        let boot = u128::from_be_bytes(bytes.get(..16)?.try_into().ok()?);
        let nanos = u32::try_from(number(24)?).ok().filter(|nanos| *nanos < 1_000_000_000)?;
        Some(Self {
            boot: (boot != 0).then_some(BootId(boot)),
            since_boot: Duration::new(number(16)?, nanos),
            wall: Timestamp::from_micros(signed(32)?),
            server: Some(signed(40)?).filter(|micros| *micros != i64::MIN).map(Timestamp::from_micros),
        })
    }
}
