//! Where Envoy reaches us: a port, or a socket in the file system.

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

/// Envoy's user is in our group, and others have no business here.
const SOCKET_MODE: u32 = 0o660;

/// An open ear.
pub enum Envoys {
    /// On a port.
    Tcp(TcpListener),
    /// On a socket in the file system.
    Unix(UnixListener, SocketFile),
}

/// Connections as they come.
pub enum Incoming {
    /// On a port.
    Tcp(TcpIncoming),
    /// On a socket in the file system, which is removed when the second part is dropped.
    Unix(UnixListenerStream, SocketFile),
}

/// A socket's file, removed at the end.
pub struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Who removed it before us did what we want.
        let _gone = fs::remove_file(&self.0);
    }
}

impl Envoys {
    /// Opens the port or the socket.
    pub async fn bind(address: &ListenAddress) -> io::Result<Self> {
        match address {
            ListenAddress::Tcp(address) => TcpListener::bind(address).await.map(Self::Tcp),
            ListenAddress::Unix(path) => {
                remove_stale(path).await?;
                let listener = UnixListener::bind(path)?;
                let file = SocketFile(path.clone());
                fs::set_permissions(path, fs::Permissions::from_mode(SOCKET_MODE))?;
                Ok(Self::Unix(listener, file))
            }
        }
    }

    /// The port.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Unix(..) => None,
        }
    }

    /// Begins to accept.
    pub fn incoming(self) -> Incoming {
        match self {
            Self::Tcp(listener) => Incoming::Tcp(TcpIncoming::from(listener).with_nodelay(Some(true))),
            Self::Unix(listener, file) => Incoming::Unix(UnixListenerStream::new(listener), file),
        }
    }
}

/// Removes what a killed process left behind, and nothing else: not a file of another kind, nor a socket
/// on which somebody answers.
async fn remove_stale(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(found) if !found.file_type().is_socket() => {
            Err(io::Error::new(io::ErrorKind::AlreadyExists, "the path exists and is not a socket"))
        }
        Ok(_) if UnixStream::connect(path).await.is_ok() => {
            Err(io::Error::new(io::ErrorKind::AddrInUse, "another process answers on this socket"))
        }
        Ok(_) => fs::remove_file(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_nothing_else_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("check.sock");
        let address = ListenAddress::Unix(path.clone());
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let bound = Envoys::bind(&address).await.unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, SOCKET_MODE);
        assert!(Envoys::bind(&address).await.is_err(), "it is in use");
        drop(bound);
        assert!(!path.exists());
        fs::write(&path, "precious").unwrap();
        assert!(Envoys::bind(&address).await.is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }
}
