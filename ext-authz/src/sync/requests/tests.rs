//! Tests of the reports of a stream.

use super::*;
use std::time::Duration;
use tokio::{sync::mpsc::Receiver, time::timeout};

const fn revision(number: i64) -> Revision {
    Revision::new(number)
}

/// Sends the reports that are due, and returns all messages of the queue. A ping is 0, and Leaving is -1.
async fn sent(requests: &mut Requests, queue: &mut Receiver<FollowRequest>) -> Vec<i64> {
    let reports = async {
        loop {
            requests.report().await;
        }
    };
    // The runtime of the test has one thread, so a report that is due is sent at the first poll.
    let _elapsed = timeout(Duration::from_millis(1), reports).await;
    queued(queue)
}

fn queued(queue: &mut Receiver<FollowRequest>) -> Vec<i64> {
    let number = |request: FollowRequest| match request.message.unwrap() {
        Message::Ping(_) => 0,
        Message::Applied(v1::Applied { revision }) => revision,
        Message::Leaving(v1::Leaving {}) => -1,
        Message::Hello(hello) => panic!("{hello:?}"),
    };
    std::iter::from_fn(|| queue.try_recv().ok()).map(number).collect()
}

fn ping() -> FollowRequest {
    FollowRequest { message: Some(Message::Ping(v1::Ping { number: 1 })) }
}

#[tokio::test]
async fn published_revision_is_reported_once() {
    let (mut requests, mut queue) = Requests::new(None);
    assert_eq!(sent(&mut requests, &mut queue).await, [0; 0], "nothing was published");
    requests.record_published(revision(10));
    assert_eq!(sent(&mut requests, &mut queue).await, [10], "Hello did not report it");
    requests.record_published(revision(11));
    assert_eq!(sent(&mut requests, &mut queue).await, [11]);
    requests.record_published(revision(11));
    assert_eq!(sent(&mut requests, &mut queue).await, [0; 0], "it is reported already");
    requests.record_published(revision(12));
    requests.record_published(revision(13));
    assert_eq!(sent(&mut requests, &mut queue).await, [13], "one report for both");
}

#[tokio::test]
async fn reports_wait_for_room_and_leave_room_for_pings() {
    let (mut requests, mut queue) = Requests::new(None);
    for _ in 0..=QUEUE_LEN - FREE_BEFORE_REPORT {
        requests.send_now(ping()).unwrap();
    }
    requests.record_published(revision(11));
    let waits = timeout(Duration::from_millis(1), requests.report()).await;
    assert!(waits.is_err(), "the queue is full");
    requests.record_published(revision(12));
    for _ in 1..FREE_BEFORE_REPORT {
        requests.send_now(ping()).unwrap();
    }
    assert!(requests.send_now(ping()).is_err());
    assert_eq!(queued(&mut queue), [0; QUEUE_LEN]);
    assert_eq!(sent(&mut requests, &mut queue).await, [12], "one report when there is room");
    drop(queue);
    requests.record_published(revision(13));
    let waits = timeout(Duration::from_millis(1), requests.report()).await;
    assert!(waits.is_err(), "the responses tell why the stream has ended");
}

#[tokio::test]
async fn copy_on_disk_delays_reports() {
    let copy = Arc::new(CopyProgress::new(true));
    let (mut requests, mut queue) = Requests::new(Some(Arc::clone(&copy)));
    for number in [11, 13] {
        requests.record_published(revision(number));
    }
    assert!(copy.is_awaited());
    assert_eq!(sent(&mut requests, &mut queue).await, [0; 0], "the earlier copy is on disk");
    let write = copy.begin_write();
    copy.written(write, Revision::new(12));
    assert_eq!(sent(&mut requests, &mut queue).await, [11], "12 is not the revision of a message");
    let write = copy.begin_write();
    let (reported, ()) = tokio::join!(timeout(Duration::from_secs(20), requests.report()), async {
        tokio::task::yield_now().await;
        copy.written(write, Revision::new(13));
    });
    reported.unwrap();
    assert_eq!(queued(&mut queue), [13]);
    assert!(!copy.is_awaited());
    copy.removed();
    requests.record_published(revision(14));
    assert_eq!(sent(&mut requests, &mut queue).await, [14], "there is no copy");
}

#[tokio::test]
async fn reports_do_not_starve_while_changes_arrive_faster_than_copies_are_written() {
    let copy = Arc::new(CopyProgress::new(true));
    let (mut requests, mut queue) = Requests::new(Some(Arc::clone(&copy)));
    let count = i64::try_from(MAX_UNREPORTED).unwrap();
    for number in 11..11 + 2 * count {
        requests.record_published(revision(number));
    }
    assert_eq!(requests.unreported.len(), MAX_UNREPORTED);
    let write = copy.begin_write();
    copy.written(write, Revision::new(11 + count));
    assert_eq!(sent(&mut requests, &mut queue).await, [9 + count]);
    let write = copy.begin_write();
    copy.written(write, Revision::new(100 * count));
    assert_eq!(sent(&mut requests, &mut queue).await, [10 + 2 * count], "the newest is not lost");
}

#[tokio::test]
async fn leaving_ends_the_requests() {
    let (requests, mut queue) = Requests::new(None);
    requests.leave().await;
    assert_eq!(queued(&mut queue), [-1]);
    assert!(queue.is_closed());
}
