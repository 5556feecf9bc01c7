use super::*;
use crate::SystemClock;
use prometheus::Registry;
use std::{fs, os::unix::fs::symlink, process::Command};

/// A pair of files in a new directory. A pair is valid if both files have the same content.
struct Pair {
    directory: tempfile::TempDir,
    registry: Registry,
    loaded: Arc<Mutex<Vec<String>>>,
    reloader: FileReloader,
}

impl Pair {
    fn new(content: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        write_version(directory.path(), "1", content, content);
        symlink("1", directory.path().join("..data")).unwrap();
        let paths = ["certificate", "key"].map(|name| directory.path().join("..data").join(name));
        let loaded = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&loaded);
        let load = move |contents: &FileContents| {
            let [certificate, key] = &contents[..] else { return Err("two files are expected".to_owned()) };
            if certificate != key {
                return Err("the key does not match the certificate".to_owned());
            }
            let text = String::from_utf8(certificate.to_vec()).unwrap();
            log.lock().unwrap_or_else(PoisonError::into_inner).push(text.clone());
            Ok(text)
        };
        let loaded_files = paths.each_ref().map(|path| (path.as_path(), content.as_bytes()));
        let files = LoadedFiles::new("tls.certificate", &loaded_files);
        let registry = Registry::new();
        let metrics = FileReloadMetrics::new(&MetricFactory { registry: &registry, prefix: "test" }).unwrap();
        let reloader = FileReloader::new(files, Box::new(load), &metrics, Arc::new(SystemClock));
        Self { directory, registry, loaded, reloader }
    }

    fn write(&self, name: &str, content: &str) {
        fs::write(self.directory.path().join("..data").join(name), content).unwrap();
    }

    /// Reads the files until a change has been read twice.
    fn poll_twice(&mut self) {
        self.reloader.poll();
        self.reloader.poll();
    }

    fn loaded(&self) -> Vec<String> {
        self.loaded.lock().unwrap().clone()
    }

    fn count(&self, result: &str) -> u64 {
        count(&self.registry, result)
    }
}

/// The number of loads with this result.
fn count(registry: &Registry, result: &str) -> u64 {
    let text = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
    let name = format!(r#"test_file_reloads_total{{result="{result}",setting="tls.certificate"}} "#);
    text.lines().find_map(|line| line.strip_prefix(&name)).unwrap().parse().unwrap()
}

fn write_version(directory: &Path, version: &str, certificate: &str, key: &str) {
    let version = directory.join(version);
    fs::create_dir(&version).unwrap();
    fs::write(version.join("certificate"), certificate).unwrap();
    fs::write(version.join("key"), key).unwrap();
}

#[test]
fn unchanged_files_are_not_loaded() {
    let mut pair = Pair::new("old");
    pair.poll_twice();
    pair.write("key", "old");
    pair.poll_twice();
    assert_eq!((pair.loaded(), pair.count("ok"), pair.count("failed")), (vec![], 0, 0));
}

#[test]
fn half_replaced_pair_is_loaded_when_it_is_complete() {
    let mut pair = Pair::new("old");
    pair.write("certificate", "new");
    pair.poll_twice();
    let failure = pair.reloader.failure.clone();
    assert_eq!(failure.as_deref(), Some("the key does not match the certificate"));
    pair.reloader.poll();
    assert_eq!(pair.reloader.failure, failure);
    assert_eq!((pair.loaded(), pair.count("ok"), pair.count("failed")), (vec![], 0, 2));
    pair.write("key", "new");
    pair.poll_twice();
    assert_eq!((pair.loaded(), pair.count("ok"), pair.count("failed")), (vec!["new".to_owned()], 1, 2));
    assert_eq!(pair.reloader.failure, None);
    pair.reloader.poll();
    assert_eq!(pair.loaded().len(), 1);
}

#[test]
fn file_that_is_still_written_is_not_loaded() {
    let mut pair = Pair::new("old");
    for content in ["n", "ne", "new"] {
        pair.write("certificate", content);
        pair.write("key", content);
        pair.reloader.poll();
        assert_eq!((pair.loaded(), pair.count("failed")), (vec![], 0));
    }
    pair.reloader.poll();
    assert_eq!(pair.loaded(), ["new"]);
}

#[test]
fn files_behind_a_replaced_symbolic_link_are_loaded() {
    let mut pair = Pair::new("old");
    let path = pair.directory.path().to_owned();
    write_version(&path, "2", "new", "new");
    symlink("2", path.join("..data_tmp")).unwrap();
    fs::rename(path.join("..data_tmp"), path.join("..data")).unwrap();
    pair.poll_twice();
    assert_eq!(pair.loaded(), ["new"]);
}

#[test]
fn missing_and_too_large_files_keep_the_loaded_content() {
    let mut pair = Pair::new("old");
    let key = pair.directory.path().join("..data/key");
    fs::remove_file(&key).unwrap();
    pair.reloader.poll();
    assert!(pair.reloader.failure.as_ref().unwrap().contains(key.to_str().unwrap()));
    fs::File::create(&key).unwrap().set_len(MAX_FILE_BYTES + 1).unwrap();
    pair.reloader.poll();
    assert!(pair.reloader.failure.as_ref().unwrap().contains("larger than"));
    pair.write("key", "old");
    pair.reloader.poll();
    assert_eq!((pair.reloader.failure.take(), pair.loaded(), pair.count("failed")), (None, vec![], 2));
}

#[tokio::test]
async fn read_that_does_not_end_counts_as_failed() {
    let pair = Pair::new("old");
    let key = pair.directory.path().join("..data/key");
    fs::remove_file(&key).unwrap();
    // A read of a pipe waits until somebody writes to it.
    assert!(Command::new("mkfifo").arg(&key).status().unwrap().success());
    let Pair { directory, registry, loaded, mut reloader } = pair;
    reloader.read_timeout = Duration::from_millis(20);
    let run = tokio::spawn(reloader.run(Duration::from_millis(1)));
    let wait = || tokio::time::sleep(Duration::from_millis(1));
    while count(&registry, "failed") < 2 {
        wait().await;
    }
    for name in ["certificate", "new"] {
        fs::write(directory.path().join("..data").join(name), "new").unwrap();
    }
    let pipe = fs::OpenOptions::new().write(true).open(&key).unwrap();
    fs::rename(directory.path().join("..data/new"), &key).unwrap();
    drop(pipe);
    while loaded.lock().unwrap().is_empty() {
        wait().await;
    }
    assert_eq!(*loaded.lock().unwrap(), ["new"]);
    run.abort();
}

#[test]
fn bytes_that_move_between_files_change_the_digest() {
    assert_ne!(ContentDigest::of(&["ab", "c"]), ContentDigest::of(&["a", "bc"]));
    assert_eq!(ContentDigest::of(&["ab", "c"]), ContentDigest::of(&[b"ab".to_vec(), b"c".to_vec()]));
}
