//! Runs a program as a child process that behaves as if it had replaced this process.
//!
//! Invariant: this process ends after the program, with the program's exit code.

use rustix::{
    process::{Pid, Signal, getpgrp, kill_process},
    termios::tcgetpgrp,
};
use std::{fs, future::poll_fn, io, os::unix::process::ExitStatusExt, process::ExitStatus, task::Poll};
use tokio::{
    process::Command,
    signal::unix::{self, SignalKind, signal},
};

/// If a signal ends the program, the exit code is this plus the number of the signal, as in shells.
const SIGNAL_EXIT_CODE: i32 = 128;

/// Signals that a terminal sends to all processes in its foreground, so the program receives them without our help.
const SIGNALS_OF_TERMINAL: [Signal; 3] = [Signal::INT, Signal::QUIT, Signal::HUP];

/// Signals that we pass on to the program.
const FORWARDED: [(Signal, fn() -> SignalKind); 6] = [
    (Signal::HUP, SignalKind::hangup),
    (Signal::INT, SignalKind::interrupt),
    (Signal::QUIT, SignalKind::quit),
    (Signal::TERM, SignalKind::terminate),
    (Signal::USR1, SignalKind::user_defined1),
    (Signal::USR2, SignalKind::user_defined2),
];

/// The names of the variables with a proxy for HTTP.
const PROXY_VARIABLES: [&str; 4] = ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"];

/// The names of the variables with hosts that are reached without a proxy. Programs read one of them or both.
const NO_PROXY_VARIABLES: [&str; 2] = ["no_proxy", "NO_PROXY"];

/// Signals that do not end this process: it receives them, and passes them on to the program.
struct HandledSignals(Vec<(Signal, unix::Signal)>);

/// Runs the program to its end, and returns its exit code. The program shares the terminal, the streams and the process group of this
/// process. An error means that the program was not started.
pub async fn run(mut command: Command) -> io::Result<u8> {
    let mut signals = HandledSignals::new()?;
    let mut child = command.spawn()?;
    let process = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
    let status = loop {
        tokio::select! {
            status = child.wait() => break status?,
            signal = signals.next() => {
                if let Some(process) = process && !is_sent_by_terminal(signal) {
                    // If the program has just ended, no signal can be sent, and none is needed.
                    let _ignored = kill_process(process, signal);
                }
            }
        }
    };
    Ok(exit_code(status))
}

/// Makes the program connect to loopback without the proxy that the environment sets: its secret and tokens must not pass a proxy.
pub fn exclude_loopback_from_proxy(command: &mut Command) {
    if PROXY_VARIABLES.iter().all(|name| std::env::var_os(name).is_none_or(|value| value.is_empty())) {
        return;
    }
    let excluded = NO_PROXY_VARIABLES.iter().find_map(|name| std::env::var(name).ok()).unwrap_or_default();
    let excluded = with_loopback(&excluded);
    for name in NO_PROXY_VARIABLES {
        command.env(name, &excluded);
    }
}

fn with_loopback(excluded: &str) -> String {
    match excluded.trim() {
        "" => "127.0.0.1".to_owned(),
        // `*` excludes all hosts, but only if it stands alone.
        "*" => "*".to_owned(),
        excluded => format!("{excluded},127.0.0.1"),
    }
}

impl HandledSignals {
    /// Handles the signals to pass on, except those that it ignores because of `nohup`: the program ignores these, too.
    fn new() -> io::Result<Self> {
        let ignored = ignored_signals(&fs::read_to_string("/proc/self/status").unwrap_or_default());
        let is_ignored = |signal: Signal| ignored & (1 << (signal.as_raw() - 1)) != 0;
        let handled = FORWARDED.into_iter().filter(|(number, _)| !is_ignored(*number));
        handled.map(|(number, kind)| Ok((number, signal(kind())?))).collect::<io::Result<_>>().map(Self)
    }

    async fn next(&mut self) -> Signal {
        poll_fn(|task| {
            let is_received =
                |(number, stream): &mut (Signal, unix::Signal)| stream.poll_recv(task).is_ready().then_some(*number);
            self.0.iter_mut().find_map(is_received).map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

/// The bit set of ignored signals in `/proc/PID/status` of Linux; the lowest bit is signal 1. Empty on other systems.
fn ignored_signals(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or_default()
}

/// Whether the terminal has sent the signal to the program, too, as to every process in its foreground. We do not pass such a
/// signal on: a second Ctrl-C makes some programs end without cleaning up.
fn is_sent_by_terminal(signal: Signal) -> bool {
    let is_in_foreground = || {
        let terminal = fs::File::open("/dev/tty").ok()?;
        Some(tcgetpgrp(&terminal).ok()? == getpgrp())
    };
    SIGNALS_OF_TERMINAL.contains(&signal) && is_in_foreground().unwrap_or_default()
}

fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| SIGNAL_EXIT_CODE + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_of_a_shell() {
        // The status of `wait`: the exit code in the second byte, or the signal in the first byte.
        for (status, code) in [(0, 0), (42 << 8, 42), (255 << 8, 255), (9, 137), (2, 130)] {
            assert_eq!(exit_code(ExitStatus::from_raw(status)), code, "{status}");
        }
    }

    #[test]
    fn ignored_signals_are_read_from_the_status_of_the_process() {
        let status = "SigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000000000\n";
        assert_eq!(ignored_signals(status), 0x1001, "SIGHUP and SIGPIPE");
        assert_eq!(ignored_signals(""), 0);
    }

    #[test]
    fn loopback_is_added_to_the_hosts_without_proxy() {
        for (before, after) in [("", "127.0.0.1"), ("host.example", "host.example,127.0.0.1"), (" * ", "*")] {
            assert_eq!(with_loopback(before), after);
        }
    }
}
