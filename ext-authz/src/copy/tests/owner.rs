//! Tests of the process that owns the directory, and of the one that wrote a copy.

use super::*;

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

impl Fixture {
    /// The process ends, and another one locks the directory.
    pub(super) fn lock_again(&mut self) {
        let path = self.path.parent().unwrap().to_owned();
        self.directory = CopyDirectory::lock(&self.folder.path().join("other"), &FIRST_LOCK).unwrap();
        self.directory = CopyDirectory::lock(&path, &FIRST_LOCK).unwrap();
    }
}
