//! The listener to which Envoy connects: a TCP port or a Unix socket.

use crate::config::ListenAddress;
use std::{
    fs, io,
    net::SocketAddr,
    os::unix::fs::{FileTypeExt, PermissionsExt},
    path::{Path, PathBuf},
};
use tokio::net::{TcpListener, UnixListener, UnixStream};

/// The file mode of the Unix socket: Envoy's user must be in the group of this process, and other users have no access.
const SOCKET_MODE: u32 = 0o660;

pub enum CheckListener {
    Tcp(TcpListener),
    /// The listener of a Unix socket, and the socket's path.
    Unix(UnixListener, SocketFile),
}

/// The path of a Unix socket, which is removed when this value is dropped.
pub struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Ignores errors, because the file of the socket may already have been removed.
        let _ignored = fs::remove_file(&self.0);
    }
}

impl CheckListener {
    pub async fn bind(address: &ListenAddress) -> io::Result<Self> {
        match address {
            ListenAddress::Tcp(address) => TcpListener::bind(address).await.map(Self::Tcp),
            ListenAddress::Unix(path) => {
                remove_stale_socket(path).await?;
                let listener = UnixListener::bind(path)?;
                let file = SocketFile(path.clone());
                fs::set_permissions(path, fs::Permissions::from_mode(SOCKET_MODE))?;
                Ok(Self::Unix(listener, file))
            }
        }
    }

    /// The TCP address; `None` for a Unix socket.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Unix(..) => None,
        }
    }
}

/// Removes a socket that a killed process left behind. Fails if the path is no socket, or if a process listens on it.
async fn remove_stale_socket(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            Err(io::Error::new(io::ErrorKind::AlreadyExists, "the path exists and is not a socket"))
        }
        Ok(_) if UnixStream::connect(path).await.is_ok() => {
            Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens on this socket"))
        }
        Ok(_) => fs::remove_file(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn bind_replaces_only_a_stale_socket() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("check.sock");
        let address = ListenAddress::Unix(path.clone());
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let listener = CheckListener::bind(&address).await.unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, SOCKET_MODE);
        assert!(CheckListener::bind(&address).await.is_err(), "the socket is in use");
        drop(listener);
        assert!(!path.exists());
        fs::write(&path, "content").unwrap();
        assert!(CheckListener::bind(&address).await.is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "content");
    }
}
