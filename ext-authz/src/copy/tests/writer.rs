//! Tests of when the writer writes, and of the progress that it records.

use super::*;
use crate::{
    metrics::Metrics,
    sync::CopyProgress,
    view::{ApiKeyIndex, Views},
};
use arc_swap::ArcSwap;
use countersign_process::{Shutdown, SystemClock};
use tokio::{task::JoinHandle, time::timeout};
use tonic::metadata::MetadataValue;

const INDEX: ApiKeyIndex = ApiKeyIndex(0);
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

struct RunningWriter {
    views: Arc<Views>,
    progress: Arc<CopyProgress>,
    shutdown: Shutdown,
    task: JoinHandle<()>,
}

impl RunningWriter {
    /// A writer with an interval that does not pass during a test. The directory may contain an earlier copy.
    fn start(directory: &CopyDirectory) -> Self {
        let views = Arc::new(Views::new(1, None));
        let progress = Arc::new(CopyProgress::new(directory.has_file(&key(KEY))));
        let writer = CopyWriter {
            index: INDEX,
            authorization: Arc::new(ArcSwap::from_pointee(MetadataValue::from_static("Bearer svc_sk_first"))),
            directory: directory.clone(),
            interval: |_| Duration::from_hours(1),
            instance: INSTANCE,
            progress: Arc::clone(&progress),
            views: Arc::clone(&views),
            metrics: Arc::new(Metrics::new().unwrap()),
            clock: Arc::new(SystemClock),
            state: WriterState::default(),
        };
        let shutdown = Shutdown::default();
        let task = tokio::spawn(writer.run(shutdown.clone()));
        Self { views, progress, shutdown, task }
    }

    fn publish(&self, view: View) {
        self.views.publish(INDEX, &Arc::new(view));
    }

    async fn wait_until_on_disk(&self, revision: i64) {
        let mut changes = self.progress.changes();
        let wait = async {
            while self.progress.on_disk() != Some(Revision::new(revision)) {
                changes.next().await;
            }
        };
        timeout(TEST_TIMEOUT, wait).await.unwrap_or_else(|_| panic!("{:?} is on disk", self.progress.on_disk()));
    }

    async fn stop(self) {
        self.shutdown.trigger();
        timeout(TEST_TIMEOUT, self.task).await.unwrap().unwrap();
    }
}

/// A view that is confirmed now.
fn current_view() -> View {
    let clock = SystemClock;
    unconfirmed_view(3).confirm(Confirmation {
        revision: Revision::new(30),
        floor: Revision::new(10),
        ping_sent_at: clock.since_boot(),
        server_clock: None,
    })
}

fn changed(view: &View, revision: i64) -> View {
    view.apply(crate::view::Delta { revision: Revision::new(revision), ..crate::view::Delta::default() })
}

fn revision_in(directory: &CopyDirectory) -> Option<i64> {
    directory.open(&key(KEY), None).unwrap().map(|stored| stored.view.revision().number())
}

#[tokio::test]
async fn awaited_change_is_written_before_the_interval_and_without_a_newer_confirmation() {
    let folder = tempfile::tempdir().unwrap();
    let directory = CopyDirectory::lock(folder.path(), &FIRST_LOCK).unwrap();
    let writer = RunningWriter::start(&directory);
    assert_eq!(writer.progress.on_disk(), None);
    let view = current_view();
    writer.publish(view.clone());
    writer.wait_until_on_disk(30).await;
    let next = changed(&view, 31);
    writer.publish(next.clone());
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(revision_in(&directory), Some(30), "nobody waits for the copy, and the interval has not passed");
    writer.progress.want(Revision::new(31));
    writer.wait_until_on_disk(31).await;
    assert_eq!(revision_in(&directory), Some(31));
    writer.publish(changed(&next, 32));
    writer.progress.want(Revision::new(32));
    writer.stop().await;
    assert_eq!(revision_in(&directory), Some(32));
}

#[tokio::test]
async fn earlier_copy_counts_as_oldest_until_it_is_replaced() {
    let fixture = Fixture::new(3);
    let writer = RunningWriter::start(&fixture.directory);
    assert_eq!(writer.progress.on_disk(), Some(Revision::new(0)));
    writer.progress.want(Revision::new(30));
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(writer.progress.on_disk(), Some(Revision::new(0)), "there is no view");
    writer.publish(current_view());
    writer.wait_until_on_disk(30).await;
    writer.stop().await;
}

#[tokio::test]
async fn failed_write_leaves_the_earlier_copy_and_removed_copy_is_none() {
    let fixture = Fixture::new(3);
    let writer = RunningWriter::start(&fixture.directory);
    let view = current_view();
    writer.publish(view.clone());
    writer.wait_until_on_disk(30).await;
    // A file cannot replace a directory, so the next write fails.
    fs::remove_file(&fixture.path).unwrap();
    fs::create_dir(&fixture.path).unwrap();
    writer.publish(changed(&view, 31));
    writer.progress.want(Revision::new(31));
    let mut changes = writer.progress.changes();
    timeout(TEST_TIMEOUT, changes.next()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(writer.progress.on_disk(), Some(Revision::new(30)), "the earlier file may be there");
    fs::remove_dir(&fixture.path).unwrap();
    writer.views.mark_key_unknown(INDEX);
    let removed = async {
        while writer.progress.on_disk().is_some() {
            changes.next().await;
        }
    };
    timeout(TEST_TIMEOUT, removed).await.unwrap();
    writer.stop().await;
}
