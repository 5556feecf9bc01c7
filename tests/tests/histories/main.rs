//! Runs generated histories (random sequences of operations). After every operation, the outcomes of API and
//! sidecars must match the model.
//!
//! A history is a list of operations ([`operation`]). [`environment`] starts the servers, [`model`] predicts outcomes,
//! [`run`] executes an operation, and [`verification`] compares. A history that fails is shrunk and saved in the folder
//! `regressions`; the histories in that folder run first.
//!
//! `HISTORIES=n` runs n generated histories on each database engine; `make soak` repeats such runs for a given time.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests panic on unexpected values")]

mod environment;
mod expected_response;
mod fragments;
mod lagging_clock;
mod model;
mod model_updates;
mod network_operations;
mod oauth_client;
mod operation;
mod receipts;
mod requests;
mod rules;
mod run;
mod sidecar_state;
mod sidecars;
mod verification;

use countersign_tests::Postgres;
use fragments::histories;
use operation::Operation;
use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};
use run::{Violation, run};
use std::{
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};
use tokio::runtime::Builder;

/// Number of histories on each database engine if the environment variable `HISTORIES` is not set.
const DEFAULT_COUNT: u32 = 64;

/// Number of histories that run at the same time, which may exceed the number of cores, because a history mostly waits.
const THREADS: u32 = 6;

fn regressions() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/histories/regressions")
}

/// The database engine of a run.
#[derive(Clone)]
enum Engine {
    Sqlite,
    Postgres(Arc<Postgres>),
}

impl Engine {
    /// Runs a history. A panic counts as a violation, too, so that its history is shrunk and saved.
    fn run(&self, operations: &[Operation]) -> Result<(), Violation> {
        let outcome = catch_unwind(AssertUnwindSafe(|| self.run_in_runtime(operations)));
        outcome.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref().copied());
            let error = format!("panicked: {}", text.unwrap_or_default());
            Err(Violation { operation_index: operations.len(), error })
        })
    }

    fn run_in_runtime(&self, operations: &[Operation]) -> Result<(), Violation> {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            match self {
                Self::Sqlite => Box::pin(run(operations, None)).await,
                Self::Postgres(server) => {
                    let url = server.create_database().await;
                    let result = Box::pin(run(operations, Some(url.clone()))).await;
                    server.drop_database(&url).await;
                    result
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
fn saved_regressions_pass() {
    let mut files: Vec<_> = std::fs::read_dir(regressions()).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "jsonl"));
    files.sort();
    let engines = [Engine::Sqlite, postgres()];
    let runs: Vec<_> = files.iter().flat_map(|file| engines.each_ref().map(|engine| (file, engine))).collect();
    let next = AtomicUsize::new(0);
    let run_some = || {
        while let Some((file, engine)) = runs.get(next.fetch_add(1, Ordering::SeqCst)) {
            let text = std::fs::read_to_string(file).unwrap();
            let lines = text.lines().filter(|line| !line.starts_with('#'));
            let operations: Vec<Operation> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
            if let Err(Violation { error, .. }) = engine.run(&operations) {
                panic!("{}: {error}", file.display());
            }
        }
    };
    thread::scope(|scope| (0..THREADS).for_each(|_| drop(scope.spawn(run_some))));
}

#[test]
fn api_and_sidecar_match_the_model_on_sqlite() {
    run_histories(&Engine::Sqlite);
}

/// On PostgreSQL, transactions run concurrently, and each statement sees the transactions that were committed before it.
#[test]
fn api_and_sidecar_match_the_model_on_postgresql() {
    run_histories(&postgres());
}

fn run_histories(engine: &Engine) {
    let count = std::env::var("HISTORIES").map_or(DEFAULT_COUNT, |text| text.parse().expect("HISTORIES is a number"));
    let failed = AtomicBool::new(false);
    let threads = count.clamp(1, THREADS);
    let run_share = || run_until_failure(engine, count.div_ceil(threads), &failed);
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(run_share))));
    assert!(!failed.load(Ordering::SeqCst), "a history failed; the output above contains its operations");
}

fn run_until_failure(engine: &Engine, count: u32, failed: &AtomicBool) {
    let config = Config {
        cases: count,
        max_shrink_iters: 400,
        max_shrink_time: 120_000,
        failure_persistence: None,
        ..Config::default()
    };
    let (owns_failure, run_count, failed_operation) = (AtomicBool::new(false), Cell::new(0), Cell::new(0));
    let outcome = TestRunner::new(config).run(&histories(), |operations| {
        // Only one thread shrinks its failed history; the other threads stop.
        if failed.load(Ordering::SeqCst) && !owns_failure.load(Ordering::SeqCst) {
            return Ok(());
        }
        run_count.set(run_count.get() + 1);
        engine.run(&operations).map_err(|Violation { operation_index, error }| {
            failed_operation.set(operation_index);
            if !failed.swap(true, Ordering::SeqCst) {
                owns_failure.store(true, Ordering::SeqCst);
                eprintln!("history {} of one of {THREADS} threads failed; shrinking it: {error}", run_count.get());
            }
            TestCaseError::fail(error)
        })
    });
    match outcome {
        Err(TestError::Fail(reason, operations)) if owns_failure.load(Ordering::SeqCst) => {
            // The last history that failed while the test shrank its operations is the shortest failing history. The
            // operations after the failed operation are dropped.
            let (file, text) =
                save_regression(&reason.to_string(), &operations[..operations.len().min(failed_operation.get() + 1)]);
            panic!("{text}saved as {}", file.display());
        }
        Err(TestError::Abort(reason)) => panic!("{reason}"),
        Ok(()) | Err(TestError::Fail(..)) => {}
    }
}

/// Writes a history and its error to a new file in `regressions`.
fn save_regression(reason: &str, operations: &[Operation]) -> (PathBuf, String) {
    let lines: Vec<_> = operations.iter().map(|operation| serde_json::to_string(operation).unwrap()).collect();
    let reason: Vec<_> = reason.lines().map(|line| format!("# {line}")).collect();
    let text = format!("{}\n{}\n", reason.join("\n"), lines.join("\n"));
    let names = (0..1000).map(|number| regressions().join(format!("history-{number}.jsonl")));
    let file = { names }.find(|file| !file.exists()).unwrap();
    std::fs::write(&file, &text).unwrap();
    (file, text)
}
