//! Generated histories: whatever happens, in whatever order, what API and sidecar say is true.
//!
//! A history is a list of steps ([`step`]); [`world`] is where it happens, [`model`] knows what must be true,
//! [`play`] does one and looks at the other. A history that fails is made as short as it can be and kept in
//! the folder `kept` beside this file, which is played before any other.
//!
//! `HISTORIES=n` plays that many, `make soak` plays for as long as it is told.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test, whose helpers may fail too")]

mod acts;
mod clocks;
mod model;
mod play;
mod step;
mod wire;
mod world;

use play::play;
use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};
use std::{
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};
use step::{Step, histories};
use tokio::runtime::Builder;

/// Histories that `make test` plays.
const BOUNDED: u32 = 160;

/// Played at the same time: a history waits more than it works.
const PLAYERS: u32 = 6;

fn kept() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/histories/kept")
}

fn play_alone(steps: &[Step]) -> Result<(), String> {
    Builder::new_current_thread().enable_all().build().unwrap().block_on(play(steps))
}

#[test]
fn histories_that_failed_once() {
    let mut files: Vec<_> = std::fs::read_dir(kept()).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let steps: Vec<Step> = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        if let Err(error) = play_alone(&steps) {
            panic!("{}: {error}", file.display());
        }
    }
}

#[test]
fn whatever_happens_api_and_sidecar_say_what_is_true() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u32>().expect("a number"));
    let until = number("SOAK_MINUTES").map(|minutes| Instant::now() + Duration::from_secs(u64::from(minutes) * 60));
    let each = number("HISTORIES").unwrap_or(BOUNDED).div_ceil(PLAYERS);
    let players: Vec<_> = (0..PLAYERS).map(|_| thread::spawn(move || play_many(each, until))).collect();
    for player in players {
        player.join().expect("the history failed, see above");
    }
}

fn play_many(count: u32, until: Option<Instant>) {
    loop {
        let config = Config { cases: count, max_shrink_time: 120_000, failure_persistence: None, ..Config::default() };
        let played = TestRunner::new(config).run(&histories(), |steps| play_alone(&steps).map_err(TestCaseError::fail));
        match played {
            Ok(()) => {}
            Err(TestError::Fail(reason, steps)) => {
                let (file, text) = keep(&reason.to_string(), &steps);
                panic!("{text}kept as {}", file.display());
            }
            Err(TestError::Abort(reason)) => panic!("{reason}"),
        }
        if until.is_none_or(|until| Instant::now() >= until) {
            return;
        }
    }
}

/// Writes the history down, with what went wrong.
fn keep(reason: &str, steps: &[Step]) -> (PathBuf, String) {
    let lines: Vec<_> = steps.iter().map(|step| serde_json::to_string(step).unwrap()).collect();
    let reason: Vec<_> = reason.lines().map(|line| format!("# {line}")).collect();
    let text = format!("{}\n{}\n", reason.join("\n"), lines.join("\n"));
    let file = (0..).map(|number| kept().join(format!("history-{number}.jsonl"))).find(|file| !file.exists()).unwrap();
    std::fs::write(&file, &text).unwrap();
    (file, text)
}
