//! What is known of the data with which each sidecar decides.

use crate::{
    operation::{MAX_STALENESS, SERVICES},
    sidecars::{COPYING, SIDECARS},
};

/// [`MAX_STALENESS`] in microseconds.
pub const MAX_AGE: i64 = MAX_STALENESS * 1_000_000;

/// The state of the control plane with which a sidecar decides for a service.
#[derive(Debug, Clone, Copy)]
pub struct SidecarState {
    /// A range of states in the model, by index: the sidecar decides with one of them. It has one element, except after a start
    /// from a copy.
    pub states: (usize, usize),
    /// The sidecar's data was last confirmed between these two times, in microseconds. The exact time of the
    /// confirmation is unknown, because the sidecar pings at its own interval.
    pub confirmed: (i64, i64),
}

/// The states of all sidecars, and what receipts have confirmed.
pub struct SidecarStates {
    /// The state by sidecar and service; none if the sidecar has no data.
    states: [[Option<SidecarState>; SERVICES]; SIDECARS.len()],
    /// The earliest time, in microseconds, at which the data of a sidecar can have been confirmed: the start of the sidecar, or the
    /// start of the history if the sidecar has a copy.
    pub earliest: [i64; SIDECARS.len()],
    /// Whether receipts become complete soon. No longer true after a kill: receipts count a killed process until its data would be
    /// too old. Nor after the clocks advanced: if a sidecar was just writing a copy, it delays the next write by a multiple of this
    /// time.
    pub reports_are_prompt: bool,
    /// For each service, the newest change that every deciding sidecar must have, because a complete receipt says so.
    pub in_force: [i64; SERVICES],
}

impl SidecarStates {
    /// The states when all sidecars start.
    pub const fn new(now: i64) -> Self {
        Self {
            states: [[None; SERVICES]; SIDECARS.len()],
            earliest: [now; SIDECARS.len()],
            reports_are_prompt: true,
            in_force: [0; SERVICES],
        }
    }

    pub const fn of(&self, sidecar: usize, service: usize) -> Option<SidecarState> {
        self.states[sidecar][service]
    }

    pub const fn set(&mut self, sidecar: usize, service: usize, state: Option<SidecarState>) {
        self.states[sidecar][service] = state;
    }

    /// Records that a sidecar decides now with this state of a service.
    pub fn decides_with(&mut self, sidecar: usize, service: usize, state: usize, now: i64) {
        // The sidecar responds, so the last confirmation of its data is not too old. If it has just started, the first confirmation
        // may have come before the clock advanced.
        let earliest = self.of(sidecar, service).map_or(self.earliest[sidecar], |known| known.confirmed.0);
        // The copy of a sidecar can be older than its data.
        let earliest = if sidecar == COPYING { self.earliest[sidecar] } else { earliest };
        let confirmed = (earliest.max(now - MAX_AGE + 1), now);
        self.set(sidecar, service, Some(SidecarState { states: (state, state), confirmed }));
    }

    /// Records that a sidecar was killed and started again. Returns its states before.
    pub fn restart(&mut self, sidecar: usize, now: i64) -> [Option<SidecarState>; SERVICES] {
        self.reports_are_prompt = false;
        if sidecar != COPYING {
            self.earliest[sidecar] = now;
        }
        std::mem::replace(&mut self.states[sidecar], [None; SERVICES])
    }
}
