//! Certificates for a Redis and for who comes to it, of an authority of their own.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use redis::{ClientTlsConfig, TlsCertificates};
use std::{path::PathBuf, sync::Arc};
use tempfile::TempDir;

/// The files of an authority, of servers and of clients.
pub struct TlsFiles {
    folder: TempDir,
    host: String,
}

impl TlsFiles {
    /// With a certificate for servers at this host, a name or an address.
    pub fn for_servers_at(host: &str) -> Arc<Self> {
        let tls_files = Self { folder: super::folder(), host: host.to_owned() };
        let mut authority = params(&[], "An authority of tests");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        tls_files.write("authority.pem", &authority.self_signed(&key).expect("a certificate").pem());
        let authority = Issuer::new(authority, key);
        for (who, names) in [("server", &[host][..]), ("client", &[])] {
            let key = KeyPair::generate().expect("a key");
            let certificate = params(names, who).signed_by(&key, &authority).expect("a certificate");
            tls_files.write(&format!("{who}.pem"), &certificate.pem());
            tls_files.write(&format!("{who}.key"), &key.serialize_pem());
        }
        Arc::new(tls_files)
    }

    /// Where servers are, as their certificate says it.
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    /// One of the files.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// What a control plane is told that shows a certificate.
    pub fn settings(&self) -> [String; 3] {
        [("ca_file", "authority.pem"), ("certificate", "client.pem"), ("private_key", "client.key")]
            .map(|(key, name)| format!("redis.{key}={}", self.file(name).display()))
    }

    /// What a server is told that speaks TLS only, and to others of its kind too.
    pub(super) fn lines(&self, port: u16) -> Vec<String> {
        let file = |name: &str| self.file(name).display().to_string();
        vec![
            "port 0".to_owned(),
            format!("tls-port {port}"),
            format!("tls-cert-file {}", file("server.pem")),
            format!("tls-key-file {}", file("server.key")),
            format!("tls-ca-cert-file {}", file("authority.pem")),
            "tls-replication yes".to_owned(),
        ]
    }

    /// What a client shows and believes.
    pub(super) fn certificates(&self) -> TlsCertificates {
        let read = |name: &str| std::fs::read(self.file(name)).expect("it was written");
        let client_tls = ClientTlsConfig { client_cert: read("client.pem"), client_key: read("client.key") };
        TlsCertificates { client_tls: Some(client_tls), root_cert: Some(read("authority.pem")) }
    }

    fn write(&self, name: &str, content: &str) {
        std::fs::write(self.file(name), content).expect("a file can be written");
    }
}

fn params(names: &[&str], who: &str) -> CertificateParams {
    let names: Vec<_> = names.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(names).expect("names");
    params.distinguished_name.push(DnType::CommonName, who);
    params
}
