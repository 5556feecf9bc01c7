//! Tests of copies: a copy is read as it was written, and each reason why a copy is not used.

mod writer;

use super::{file::StoredView, *};
use crate::{
    sync::{Instance, MessageError, decode::tests::info, pages::view_of_pages},
    view::{Confirmation, RestoredContact, ServerClock, View},
};
use countersign_identity::{Revision, ServiceId, SessionId, Timestamp, TokenId};
use countersign_process::{BootId, Clock};
use countersign_proto::v1;
use std::{fs, path::PathBuf, sync::Arc, time::Duration};
use tempfile::TempDir;

const KEY: &[u8] = b"svc_sk_first";
const INSTANCE: Instance = Instance::from_bytes([9; 16]);

/// A clock with fixed times: boot id, seconds since boot, wall-clock seconds.
#[derive(Debug, Clone, Copy)]
pub struct FixedClock(pub Option<BootId>, pub u64, pub i64);

impl Clock for FixedClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_seconds(self.2)
    }

    fn since_boot(&self) -> Duration {
        Duration::from_secs(self.1)
    }

    fn boot_id(&self) -> Option<BootId> {
        self.0
    }
}

/// The clock at the time of the confirmation.
const CLOCK: FixedClock = FixedClock(Some(BootId(1)), 1000, 500_000);

/// The clock when the directory was locked for the first time.
const FIRST_LOCK: FixedClock = FixedClock(Some(BootId(1)), 900, 499_900);

fn key(api_key: &[u8]) -> CopyKey {
    CopyKey::derive(api_key).unwrap()
}

fn agent(number: u32) -> v1::AgentChanges {
    let role_id = countersign_identity::RoleId::from_bits(3).to_string();
    v1::AgentChanges {
        agent_hash: u128::from(number).to_be_bytes().to_vec(),
        roles: Some(v1::RolesFacet { revision: 20, grants: vec![v1::RoleGrant { role_id, until: Some(-7) }] }),
        trust: number.is_multiple_of(2).then_some(v1::TrustFacet { revision: 21, hundredths: 6250 }),
        status: number.is_multiple_of(3).then_some(v1::StatusFacet {
            revision: 22,
            status: 1 + i32::from(number > 0),
            cutoff: 5,
        }),
    }
}

/// The page of a snapshot with all kinds of data.
fn snapshot(agents: u32) -> v1::SnapshotPage {
    use v1::revocation::Subject;
    let subjects =
        [Subject::TokenId(TokenId::from_bits(8).to_string()), Subject::SessionId(SessionId::from_bits(9).to_string())];
    let point = p256::SecretKey::from_slice(&[1; 32]).unwrap().public_key().to_sec1_bytes().to_vec();
    v1::SnapshotPage {
        revision: 30,
        floor: 10,
        info: Some(info(ServiceId::from_bits(1))),
        keys: Some(v1::Keys { points: vec![point] }),
        roles: Some(v1::Roles {
            roles: vec![v1::Role {
                id: countersign_identity::RoleId::from_bits(3).to_string(),
                name: "reader".into(),
                permissions: vec!["read".into()],
                created_revision: 4,
            }],
        }),
        agents: (0..agents).map(agent).collect(),
        revocations: subjects.map(|subject| v1::Revocation { revision: 23, subject: Some(subject) }).into(),
        last: true,
        cursor: 0,
    }
}

fn unconfirmed_view(agents: u32) -> Arc<View> {
    view_of_pages(std::iter::once(Ok::<_, MessageError>(snapshot(agents))), None).unwrap()
}

fn confirmed_view(agents: u32) -> View {
    let since_boot = CLOCK.since_boot();
    unconfirmed_view(agents).confirm(Confirmation {
        revision: Revision::new(31),
        floor: Revision::new(11),
        ping_sent_at: since_boot,
        server_clock: Some(ServerClock::new(Timestamp::from_seconds(600_000), since_boot)),
    })
}

/// All data of a view, in an order that does not depend on maps.
fn content(view: &View) -> Vec<v1::SnapshotPage> {
    let mut pages: Vec<_> = crate::sync::pages::pages_of(view).collect();
    let mut all = pages.remove(0);
    for page in pages {
        all.agents.extend(page.agents);
        all.revocations.extend(page.revocations);
        all.last = page.last;
    }
    all.agents.sort_by_key(|agent| agent.agent_hash.clone());
    all.revocations.sort_by_key(|revocation| format!("{revocation:?}"));
    vec![all]
}

struct Fixture {
    folder: TempDir,
    directory: CopyDirectory,
    path: PathBuf,
}

impl Fixture {
    fn new(agents: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let directory = CopyDirectory::lock(&folder.path().join("copies"), &FIRST_LOCK).unwrap();
        directory.prepare(&[]).unwrap();
        let view = confirmed_view(agents);
        let contact = Contact::of(&view, &CLOCK).unwrap();
        directory.write(&key(KEY), &view, Origin { contact, instance: INSTANCE }).unwrap();
        let path = directory.path_of(&key(KEY));
        Self { folder, directory, path }
    }

    fn open(&self) -> Result<StoredView, CopyRejection> {
        self.directory.open(&key(KEY), None).map(Option::unwrap)
    }

    fn restore(&self, clock: FixedClock) -> Result<View, CopyRejection> {
        self.open()?.restore(&clock)
    }

    /// Unlocks and locks the directory, as if a new process followed this one. Locking a second directory drops the first lock.
    fn lock_again(&mut self) {
        let path = self.path.parent().unwrap().to_owned();
        self.directory = CopyDirectory::lock(&self.folder.path().join("other"), &FIRST_LOCK).unwrap();
        self.directory = CopyDirectory::lock(&path, &FIRST_LOCK).unwrap();
    }
}

#[test]
fn copy_contains_the_whole_view() {
    for agents in [0, 7, 2500] {
        let fixture = Fixture::new(0);
        let view = confirmed_view(agents);
        let contact = Contact::of(&view, &CLOCK).unwrap();
        fixture.directory.write(&key(KEY), &view, Origin { contact, instance: INSTANCE }).unwrap();
        let restored = fixture.restore(CLOCK).unwrap();
        assert_eq!(content(&restored), content(&view));
        assert_eq!((restored.revision(), restored.floor()), (Revision::new(31), Revision::new(11)));
        assert_eq!((restored.confirmed_at(), restored.is_restored()), (Some(CLOCK.since_boot()), true));
        assert_eq!(restored.settings(), view.settings());
        assert_eq!(Contact::of(&restored, &CLOCK), None, "a restored view is not written again");
        assert_eq!(fs::read_dir(fixture.folder.path().join("copies")).unwrap().count(), 2, "the copy and the lock");
    }
}

#[test]
fn file_is_private_and_discloses_nothing() {
    use std::os::unix::fs::PermissionsExt;
    let fixture = Fixture::new(10);
    assert_eq!(fs::metadata(&fixture.path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(fixture.path.parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);
    let bytes = fs::read(&fixture.path).unwrap();
    let contains = |needle: &[u8]| bytes.windows(needle.len()).any(|window| window == needle);
    let hash = 5_u128.to_be_bytes();
    assert!(!contains(KEY) && !contains(b"reader") && !contains(b"issuer") && !contains(&hash));
    assert_eq!(format!("{:?}", key(KEY)), "CopyKey");
}

#[test]
fn changed_bit_anywhere_is_detected() {
    let mut fixture = Fixture::new(3);
    fixture.lock_again();
    let bytes = fs::read(&fixture.path).unwrap();
    for position in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[position] ^= 1 << (position % 8);
        fs::write(&fixture.path, changed).unwrap();
        let expected = match position {
            8..12 => CopyRejection::UnknownVersion,
            12..28 => CopyRejection::Foreign,
            _ => CopyRejection::Corrupt,
        };
        assert_eq!(fixture.open().unwrap_err(), expected, "byte {position}");
        assert_eq!(fixture.directory.ended_writer_of(&key(KEY)), None, "byte {position}");
    }
    fs::write(&fixture.path, [&bytes[..], &[0]].concat()).unwrap();
    assert_eq!(fixture.open().unwrap_err(), CopyRejection::Corrupt, "a byte is appended");
    fs::write(&fixture.path, bytes).unwrap();
    fixture.open().unwrap();
    assert_eq!(fixture.directory.ended_writer_of(&key(KEY)), Some(INSTANCE));
}

#[test]
fn truncation_at_every_length_is_detected() {
    let mut fixture = Fixture::new(3);
    fixture.lock_again();
    let bytes = fs::read(&fixture.path).unwrap();
    for len in 0..bytes.len() {
        fs::write(&fixture.path, &bytes[..len]).unwrap();
        assert_eq!(fixture.open().unwrap_err(), CopyRejection::Corrupt, "{len} bytes");
        assert_eq!(fixture.directory.ended_writer_of(&key(KEY)), None, "{len} bytes");
    }
}

#[test]
fn copy_of_another_key_or_version_is_rejected() {
    let mut fixture = Fixture::new(3);
    fixture.lock_again();
    let bytes = fs::read(&fixture.path).unwrap();
    let other = key(b"svc_sk_second");
    assert!(fixture.directory.open(&other, None).unwrap().is_none());
    fs::copy(&fixture.path, fixture.directory.path_of(&other)).unwrap();
    assert_eq!(fixture.directory.open(&other, None).unwrap_err(), CopyRejection::Foreign);
    // A header that names the other key does not help: the content is encrypted with the first one.
    let mut forged = bytes.clone();
    forged[12..28].copy_from_slice(&other.id());
    fs::write(fixture.directory.path_of(&other), forged).unwrap();
    assert_eq!(fixture.directory.open(&other, None).unwrap_err(), CopyRejection::Corrupt);
    let mut later = bytes;
    later[11] = 2;
    fs::write(&fixture.path, later).unwrap();
    assert_eq!(fixture.open().unwrap_err(), CopyRejection::UnknownVersion);
    assert_eq!(fixture.directory.ended_writer_of(&key(KEY)), None);
}

#[test]
fn only_regular_files_of_limited_size_are_read() {
    let fixture = Fixture::new(3);
    let moved = fixture.path.with_extension("moved");
    fs::rename(&fixture.path, &moved).unwrap();
    std::os::unix::fs::symlink(&moved, &fixture.path).unwrap();
    assert_eq!(fixture.open().unwrap_err(), CopyRejection::Unreadable);
    fs::remove_file(&fixture.path).unwrap();
    fs::create_dir(&fixture.path).unwrap();
    assert_eq!(fixture.open().unwrap_err(), CopyRejection::Unreadable);
    fs::remove_dir(&fixture.path).unwrap();
    fs::File::create(&fixture.path).unwrap().set_len(super::file::MAX_COPY_BYTES + 100).unwrap();
    assert_eq!(fixture.open().unwrap_err(), CopyRejection::TooLarge);
}

#[test]
fn age_counts_on_the_boot_clock_within_a_boot_and_on_the_wall_clock_after_it() {
    let fixture = Fixture::new(3);
    let rejection = |clock| fixture.restore(clock).unwrap_err();
    let age = |clock: FixedClock| fixture.restore(clock).unwrap().age(clock.since_boot()).unwrap().as_secs();
    let same = CLOCK.0;
    // The wall clock does not matter within a boot.
    assert_eq!(age(FixedClock(same, 1059, 0)), 59);
    assert_eq!(age(FixedClock(same, 1059, 900_000)), 59);
    assert_eq!(rejection(FixedClock(same, 1060, 500_000)), CopyRejection::TooOld);
    assert_eq!(rejection(FixedClock(same, 999, 500_000)), CopyRejection::Future);
    // After another boot, the wall clock may be wrong by five minutes, so the copy counts as older by this time.
    let contact = fixture.open().unwrap().contact;
    let restore = |clock: FixedClock| contact.restore(Duration::from_mins(6), &clock);
    for other in [None, Some(BootId(2))] {
        for since_boot in [5, 5000] {
            let restored = restore(FixedClock(other, since_boot, 500_059)).unwrap();
            assert_eq!(restored.age.as_secs(), 359);
            let server_clock = restored.server_clock.unwrap().now(Duration::from_secs(since_boot));
            assert_eq!(server_clock, Timestamp::from_seconds(600_059), "tokens do not expire earlier");
        }
        assert_eq!(restore(FixedClock(other, 5, 500_060)).unwrap_err(), CopyRejection::TooOld);
        assert_eq!(restore(FixedClock(other, 5, 499_999)).unwrap_err(), CopyRejection::Future);
    }
}

#[test]
fn view_from_before_the_boot_is_stale_at_its_own_limit() {
    let fixture = Fixture::new(3);
    let clock = FixedClock(Some(BootId(2)), 5, 500_040);
    let stored = fixture.open().unwrap();
    let contact = RestoredContact {
        age: Duration::from_secs(40),
        ..stored.contact.restore(Duration::from_hours(1), &clock).unwrap()
    };
    let view = stored.view.restored(contact);
    // 40 of 60 seconds have passed, 5 of them since boot.
    assert_eq!((view.confirmed_at(), view.max_staleness()), (Some(Duration::ZERO), Duration::from_secs(25)));
    assert_eq!(view.server_clock().unwrap().now(clock.since_boot()), Timestamp::from_seconds(600_040));
    let confirmed = view.confirm(Confirmation {
        revision: Revision::new(32),
        floor: Revision::new(11),
        ping_sent_at: Duration::from_secs(6),
        server_clock: None,
    });
    assert_eq!((confirmed.max_staleness(), confirmed.is_restored()), (Duration::from_mins(1), false));
}

#[test]
fn own_staleness_limit_applies_to_a_copy_and_is_not_stored_in_it() {
    let fixture = Fixture::new(3);
    let open = |limit: Option<u64>| fixture.directory.open(&key(KEY), limit.map(Duration::from_secs)).unwrap().unwrap();
    let clock = FixedClock(CLOCK.0, 1020, 500_020);
    assert_eq!(open(Some(20)).restore(&clock).unwrap_err(), CopyRejection::TooOld);
    let view = open(Some(21)).restore(&clock).unwrap();
    assert_eq!(view.max_staleness(), Duration::from_secs(21));
    let contact = Contact { since_boot: clock.since_boot(), ..open(None).contact };
    fixture.directory.write(&key(KEY), &view, Origin { contact, instance: INSTANCE }).unwrap();
    assert_eq!(open(None).view.max_staleness(), Duration::from_mins(1));
}

#[test]
fn leftovers_are_removed_at_the_start() {
    let fixture = Fixture::new(3);
    let folder = fixture.path.parent().unwrap();
    let temporary = fixture.path.with_extension("0011.tmp");
    let of_removed_key = fixture.directory.path_of(&key(b"svc_sk_removed"));
    let foreign = folder.join("notes.tmp");
    for path in [&temporary, &of_removed_key, &foreign] {
        fs::write(path, "").unwrap();
    }
    fixture.directory.prepare(&[key(KEY)]).unwrap();
    assert!(!temporary.exists() && !of_removed_key.exists() && foreign.exists() && fixture.path.exists());
    let path = fixture.directory.path_of(&key(KEY));
    fixture.directory.remove(&path).unwrap();
    fixture.directory.remove(&path).unwrap();
    assert!(!fixture.path.exists());
}

#[test]
fn contact_is_decoded_as_it_was_encoded() {
    let contact = Contact {
        boot: Some(BootId(u128::MAX)),
        since_boot: Duration::new(7, 999_999_999),
        wall: Timestamp::from_micros(-3),
        server: Some(Timestamp::from_micros(9)),
    };
    assert_eq!(Contact::from_bytes(&contact.to_bytes()), Some(contact));
    let without = Contact { boot: None, server: None, ..contact };
    assert_eq!(Contact::from_bytes(&without.to_bytes()), Some(without));
    assert_eq!(Contact::from_bytes(&[255; contact::CONTACT_LEN]), None);
}

#[test]
fn directory_belongs_to_one_process_until_it_ends() {
    let fixture = Fixture::new(3);
    let path = fixture.path.parent().unwrap();
    assert!(matches!(CopyDirectory::lock(path, &FIRST_LOCK).unwrap_err(), LockError::Held));
    let of_a_task = fixture.directory.clone();
    drop(fixture.directory);
    assert!(
        matches!(CopyDirectory::lock(path, &FIRST_LOCK).unwrap_err(), LockError::Held),
        "a task still uses the directory"
    );
    drop(of_a_task);
    let next = CopyDirectory::lock(path, &FIRST_LOCK).unwrap();
    next.prepare(&[key(KEY)]).unwrap();
    assert!(next.has_file(&key(KEY)));
    assert!(matches!(CopyDirectory::lock(path, &FIRST_LOCK).unwrap_err(), LockError::Held), "the lock is no leftover");
    let file = fixture.folder.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(matches!(CopyDirectory::lock(&file, &FIRST_LOCK).unwrap_err(), LockError::Io(_)));
    assert!(!CopyDirectory::may_have_file(&file, &key(KEY)));
}

#[test]
fn copy_names_the_process_that_wrote_it_if_that_has_ended() {
    for agents in [0, 3000] {
        let mut fixture = Fixture::new(agents);
        let later = FixedClock(FIRST_LOCK.0, 1100, 500_100);
        let cloned = CopyDirectory::lock(&fixture.folder.path().join("cloned"), &later).unwrap();
        fs::copy(&fixture.path, cloned.path_of(&key(KEY))).unwrap();
        assert_eq!(cloned.ended_writer_of(&key(KEY)), None, "it was written before this directory was locked");
        fixture.lock_again();
        assert_eq!(fixture.directory.ended_writer_of(&key(KEY)), Some(INSTANCE));
        assert_eq!(fixture.directory.ended_writer_of(&key(b"svc_sk_second")), None);
        let view = confirmed_view(agents);
        let (contact, next) = (Contact::of(&view, &CLOCK).unwrap(), Instance::from_bytes([4; 16]));
        fixture.directory.write(&key(KEY), &view, Origin { contact, instance: next }).unwrap();
        assert_eq!(fixture.directory.ended_writer_of(&key(KEY)), Some(next));
    }
}
