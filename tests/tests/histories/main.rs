//! Generated histories: whatever happens, in whatever order, what API and sidecar say is true.
//!
//! A history is a list of steps ([`step`]); [`environment`] is where it happens, [`model`] knows what must be true,
//! [`play`] does one and looks at the other. A history that fails is made as short as it can be and kept in
//! the folder `kept` beside this file, which is played before any other.
//!
//! `HISTORIES=n` plays that many on each engine; `make soak` goes on for as long as it is told.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test, whose helpers may fail too")]

mod acts;
mod clocks;
mod environment;
mod model;
mod play;
mod step;
mod wire;

use countersign_tests::Postgres;
use play::{Untrue, play};
use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};
use std::{
    cell::Cell,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};
use step::{Step, histories};
use tokio::runtime::Builder;

/// Histories that `make test` plays on each engine.
const BOUNDED: u32 = 96;

/// Played at the same time: a history waits more than it works.
const PLAYERS: u32 = 6;

fn kept() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/histories/kept")
}

/// Where a history is played.
#[derive(Clone)]
enum Engine {
    Sqlite,
    Postgres(Arc<Postgres>),
}

impl Engine {
    fn play(&self, steps: &[Step]) -> Result<(), Untrue> {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            match self {
                Self::Sqlite => Box::pin(play(steps, None)).await,
                Self::Postgres(server) => {
                    let url = server.database().await;
                    let played = Box::pin(play(steps, Some(url.clone()))).await;
                    server.drop_database(&url).await;
                    played
                }
            }
        })
    }
}

fn postgres() -> Engine {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    Engine::Postgres(Arc::new(runtime.block_on(Postgres::start())))
}

#[test]
fn histories_that_failed_once() {
    let mut files: Vec<_> = std::fs::read_dir(kept()).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "jsonl"));
    files.sort();
    let engines = [Engine::Sqlite, postgres()];
    for (file, engine) in files.iter().flat_map(|file| engines.each_ref().map(|engine| (file, engine))) {
        let text = std::fs::read_to_string(file).unwrap();
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let steps: Vec<Step> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
        if let Err(Untrue { error, .. }) = engine.play(&steps) {
            panic!("{}: {error}", file.display());
        }
    }
}

#[test]
fn whatever_happens_api_and_sidecar_say_what_is_true_on_sqlite() {
    play_many(&Engine::Sqlite);
}

/// On PostgreSQL transactions truly run at the same time, each statement seeing what was committed before it.
#[test]
fn whatever_happens_api_and_sidecar_say_what_is_true_on_postgresql() {
    play_many(&postgres());
}

fn play_many(engine: &Engine) {
    let all = std::env::var("HISTORIES").map_or(BOUNDED, |text| text.parse().expect("HISTORIES is a number"));
    let failed = AtomicBool::new(false);
    let play_some = || play_until_one_fails(engine, all.div_ceil(PLAYERS), &failed);
    thread::scope(|scope| (0..PLAYERS).for_each(|_| drop(scope.spawn(play_some))));
    assert!(!failed.load(Ordering::SeqCst), "a history failed, see above");
}

fn play_until_one_fails(engine: &Engine, count: u32, failed: &AtomicBool) {
    let config = Config {
        cases: count,
        max_shrink_iters: 400,
        max_shrink_time: 120_000,
        failure_persistence: None,
        ..Config::default()
    };
    let (mine, played, at) = (AtomicBool::new(false), Cell::new(0), Cell::new(0));
    let outcome = TestRunner::new(config).run(&histories(), |steps| {
        // One failure at a time is shrunk; the others stop playing.
        if failed.load(Ordering::SeqCst) && !mine.load(Ordering::SeqCst) {
            return Ok(());
        }
        played.set(played.get() + 1);
        engine.play(&steps).map_err(|Untrue { at: step, error }| {
            at.set(step);
            if !failed.swap(true, Ordering::SeqCst) {
                mine.store(true, Ordering::SeqCst);
                eprintln!("history {} of one of {PLAYERS} players failed; making it shorter", played.get());
            }
            TestCaseError::fail(error)
        })
    });
    match outcome {
        Err(TestError::Fail(reason, steps)) if mine.load(Ordering::SeqCst) => {
            // The shortest was the last to fail; what would have come after that is nobody's business.
            let (file, text) = keep(&reason.to_string(), &steps[..steps.len().min(at.get() + 1)]);
            panic!("{text}kept as {}", file.display());
        }
        Err(TestError::Abort(reason)) => panic!("{reason}"),
        Ok(()) | Err(TestError::Fail(..)) => {}
    }
}

/// Writes the history down, with what went wrong.
fn keep(reason: &str, steps: &[Step]) -> (PathBuf, String) {
    let lines: Vec<_> = steps.iter().map(|step| serde_json::to_string(step).unwrap()).collect();
    let reason: Vec<_> = reason.lines().map(|line| format!("# {line}")).collect();
    let text = format!("{}\n{}\n", reason.join("\n"), lines.join("\n"));
    let names = (0..1000).map(|number| kept().join(format!("history-{number}.jsonl")));
    let file = { names }.find(|file| !file.exists()).unwrap();
    std::fs::write(&file, &text).unwrap();
    (file, text)
}
