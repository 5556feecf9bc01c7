//! The listener for Envoy: a TCP port or a Unix socket.

use crate::config::ListenAddress;
use std::{
    fs, io,
    net::SocketAddr,
    os::unix::fs::{FileTypeExt, PermissionsExt},
    path::{Path, PathBuf},
};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::server::TcpIncoming;

/// The mode of the socket: Envoy's user needs the group of this process; other users have no access.
const SOCKET_MODE: u32 = 0o660;

/// A bound listener.
pub enum CheckListener {
    /// A TCP port.
    Tcp(TcpListener),
    /// A Unix socket.
    Unix(UnixListener, SocketFile),
}

/// A stream of incoming connections.
pub enum Incoming {
    /// From a TCP port.
    Tcp(TcpIncoming),
    /// From a Unix socket, whose file is removed when the second part is dropped.
    Unix(UnixListenerStream, SocketFile),
}

/// The file of a Unix socket, removed on drop.
pub struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // The file may be gone already.
        let _result = fs::remove_file(&self.0);
    }
}

impl CheckListener {
    /// Binds the port or the socket.
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

    /// The address of a TCP port; `None` for a Unix socket.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Unix(..) => None,
        }
    }

    /// Starts to accept connections.
    pub fn incoming(self) -> Incoming {
        match self {
            Self::Tcp(listener) => Incoming::Tcp(TcpIncoming::from(listener).with_nodelay(Some(true))),
            Self::Unix(listener, file) => Incoming::Unix(UnixListenerStream::new(listener), file),
        }
    }
}

/// Removes the socket of a killed process. Refuses to remove other files and sockets that are in use.
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
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("check.sock");
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
