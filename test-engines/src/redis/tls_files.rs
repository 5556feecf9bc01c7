//! Certificates of a private CA for Redis servers and their clients.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use redis::{ClientTlsConfig, TlsCertificates};
use std::{path::PathBuf, sync::Arc};
use tempfile::TempDir;

/// PEM files of the CA, of servers and of clients.
pub struct TlsFiles {
    folder: TempDir,
    host: String,
}

impl TlsFiles {
    /// Creates the CA, a server certificate for this host name or address, and a client certificate.
    pub fn create(host: &str) -> Arc<Self> {
        let tls_files = Self { folder: super::temporary_folder(), host: host.to_owned() };
        let mut authority = certificate_params(&[], "Test CA");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("the key can be generated");
        tls_files.write("authority.pem", &authority.self_signed(&key).expect("the certificate is valid").pem());
        let authority = Issuer::new(authority, key);
        for (name, hosts) in [("server", &[host][..]), ("client", &[])] {
            let key = KeyPair::generate().expect("the key can be generated");
            let certificate =
                certificate_params(hosts, name).signed_by(&key, &authority).expect("the certificate is valid");
            tls_files.write(&format!("{name}.pem"), &certificate.pem());
            tls_files.write(&format!("{name}.key"), &key.serialize_pem());
        }
        Arc::new(tls_files)
    }

    /// The host in the server certificate.
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    /// Path of a file.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Parameters of `redis.url` for a control plane that uses the client certificate.
    pub fn parameters(&self) -> [String; 3] {
        [("sslrootcert", "authority.pem"), ("sslcert", "client.pem"), ("sslkey", "client.key")]
            .map(|(name, file)| format!("{name}={}", self.file(file).display()))
    }

    /// Configuration lines of a server that uses only TLS, even for replication and the cluster bus.
    pub(super) fn server_lines(&self, port: u16) -> Vec<String> {
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

    /// Client certificate and CA for the Redis client.
    pub(super) fn certificates(&self) -> TlsCertificates {
        let read = |name: &str| std::fs::read(self.file(name)).expect("the file exists");
        let client_tls = ClientTlsConfig { client_cert: read("client.pem"), client_key: read("client.key") };
        TlsCertificates { client_tls: Some(client_tls), root_cert: Some(read("authority.pem")) }
    }

    fn write(&self, name: &str, content: &str) {
        std::fs::write(self.file(name), content).expect("the file can be written");
    }
}

fn certificate_params(hosts: &[&str], common_name: &str) -> CertificateParams {
    let hosts: Vec<_> = hosts.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(hosts).expect("the names are valid");
    params.distinguished_name.push(DnType::CommonName, common_name);
    params
}
