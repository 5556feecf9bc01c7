//! A small file system that can be filled and emptied.

use std::{
    fs::File,
    io::Write,
    path::{Path, PathBuf},
    process::Command,
};
use tempfile::TempDir;

/// A tmpfs. Only root can mount one.
pub struct Small {
    folder: TempDir,
}

impl Small {
    pub fn make(megabytes: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let size = format!("size={megabytes}m,mode=0777");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "none"]).arg(folder.path()).output();
        let mounted = mounted.unwrap();
        let said = String::from_utf8_lossy(&mounted.stderr);
        assert!(
            mounted.status.success(),
            "a small disk could not be made ({said}): run the tests as root that may mount, \
             or leave out what needs it: cargo test -- --skip disk_that_is_full"
        );
        Self { folder }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Fills the file system.
    pub fn fill(&self) {
        let mut file = File::options().create(true).append(true).open(self.ballast()).unwrap();
        for size in [1 << 20, 4096] {
            while file.write_all(&vec![0; size]).is_ok() {}
        }
    }

    /// Deletes the file that fills it.
    pub fn empty(&self) {
        std::fs::remove_file(self.ballast()).unwrap();
    }

    fn ballast(&self) -> PathBuf {
        self.folder.path().join("ballast")
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _busy = Command::new("umount").arg("--lazy").arg(self.folder.path()).status();
    }
}
