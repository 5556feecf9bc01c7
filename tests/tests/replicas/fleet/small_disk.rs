//! A small file system that can be filled and emptied.

use std::{
    fs::File,
    io::Write,
    path::{Path, PathBuf},
    process::Command,
};
use tempfile::TempDir;

/// A mounted tmpfs, which only root can mount.
pub struct SmallDisk {
    folder: TempDir,
}

impl SmallDisk {
    pub fn mount(megabytes: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let size = format!("size={megabytes}m,mode=0777");
        let output = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "none"]).arg(folder.path()).output();
        let output = output.unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "cannot mount a tmpfs ({error}): run the tests as a root user that may mount, \
             or skip the tests that need it: cargo test -- --skip on_a_full_disk"
        );
        Self { folder }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Fills the file system.
    pub fn fill(&self) {
        let mut file = File::options().create(true).append(true).open(self.filler_file()).unwrap();
        for size in [1 << 20, 4096] {
            while file.write_all(&vec![0; size]).is_ok() {}
        }
    }

    /// Deletes the file that fills the file system.
    pub fn empty(&self) {
        std::fs::remove_file(self.filler_file()).unwrap();
    }

    fn filler_file(&self) -> PathBuf {
        self.folder.path().join("ballast")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _status = Command::new("umount").arg("--lazy").arg(self.folder.path()).status();
    }
}
