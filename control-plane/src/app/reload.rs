//! The files that are loaded again when they change: the TLS certificate, keys and certificate authorities of issuers, and
//! certificates for Redis and webhooks.

use super::{
    humans::{ConfiguredIssuer, IssuerFile},
    redis,
};
use crate::{
    certificates::{Certificate, CertificateError, ServedCertificate, format_time},
    config::{Config, RedisSettings},
    ephemeral::RedisClient,
    humans::{HumanTokenVerifier, InvalidJwkSet, Issuer, KeySourceError, OperatorKey},
    metrics::Metrics,
    webhooks::HttpSender,
};
use countersign_process::{
    Clock,
    file_reload::{FileReloader, LoadContents, LoadedFiles},
};
use prometheus::IntGauge;
use secrecy::ExposeSecret;
use std::{sync::Arc, time::Duration};

/// Creates the reloaders, one for the files of each setting.
pub(super) struct Reloaders<'a> {
    interval: Duration,
    clock: &'a Arc<dyn Clock>,
    metrics: &'a Metrics,
    created: Vec<FileReloader>,
}

/// The reloaders, and the interval at which they read their files.
pub(super) struct FileReloads {
    pub(super) reloaders: Vec<FileReloader>,
    pub(super) interval: Duration,
}

/// The reason in the log when files cannot be used.
fn reason(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl<'a> Reloaders<'a> {
    pub(super) const fn new(interval: Duration, clock: &'a Arc<dyn Clock>, metrics: &'a Metrics) -> Self {
        Self { interval, clock, metrics, created: Vec::new() }
    }

    /// The created reloaders, for the task that runs them.
    pub(super) fn finish(self) -> FileReloads {
        FileReloads { reloaders: self.created, interval: self.interval }
    }

    fn add(&mut self, files: LoadedFiles, load: LoadContents) {
        self.created.push(FileReloader::new(files, load, &self.metrics.file_reloads, self.clock.clone()));
    }

    /// Serves a certificate. If it was read from files, new contents of the files are served too.
    pub(super) fn serve_certificate(
        &mut self,
        config: &Config,
        certificate: &Certificate,
    ) -> Result<Arc<ServedCertificate>, CertificateError> {
        let expiry_gauge = self.metrics.certificate_expiry.clone();
        expiry_gauge.set(certificate.expires_at()?.seconds());
        let served = ServedCertificate::new(certificate)?;
        if let Err(error) = certificate.check_validity(self.clock.now()) {
            tracing::warn!(%error, "clients refuse this certificate: replace the files; they are loaded while the process runs");
        }
        let (chain, key) = (config.tls.certificate.as_path(), config.tls.private_key.as_path());
        if !chain.as_os_str().is_empty() {
            let contents = [(chain, certificate.chain.as_bytes()), (key, certificate.key.expose_secret().as_bytes())];
            let files = LoadedFiles::new("tls.certificate", &contents);
            self.add(files, load_certificate(Arc::clone(&served), expiry_gauge, self.clock.clone()));
        }
        Ok(served)
    }

    /// The verifier of human users' tokens, whose issuers follow their files.
    pub(super) fn verify_humans(
        &mut self,
        operator_key: Option<Arc<OperatorKey>>,
        configured: Vec<ConfiguredIssuer>,
    ) -> Arc<HumanTokenVerifier> {
        let (mut issuers, mut files) = (Vec::new(), Vec::new());
        for ConfiguredIssuer { issuer, file } in configured {
            files.extend(file.map(|(kind, file)| (issuer.iss().to_owned(), kind, file)));
            issuers.push(issuer);
        }
        let verifier = Arc::new(HumanTokenVerifier::new(operator_key, issuers));
        for (iss, kind, file) in files {
            self.add(file, load_issuer_file(verifier.clone(), iss, kind));
        }
        verifier
    }

    /// Sends events, with certificate authorities that follow their file.
    pub(super) fn send_events(&mut self, sender: HttpSender, file: Option<LoadedFiles>) -> Arc<HttpSender> {
        let sender = Arc::new(sender);
        if let Some(file) = file {
            let sender = sender.clone();
            let load: LoadContents = Box::new(move |contents| {
                sender.replace_authorities(contents.first().ok_or("no file")?).map_err(reason)?;
                Ok("certificate authorities for the next attempts of deliveries".to_owned())
            });
            self.add(file, load);
        }
        sender
    }

    /// Connects to Redis with certificates that follow their files.
    pub(super) fn connect_redis(
        &mut self,
        client: &Arc<RedisClient>,
        settings: &RedisSettings,
        file: Option<LoadedFiles>,
    ) {
        if let (Some(file), Some(target)) = (file, settings.target()) {
            let client = client.clone();
            let load = move |contents: &_| redis::replace_certificates(&client, &target, contents).map_err(reason);
            self.add(file, Box::new(load));
        }
    }
}

fn load_certificate(served: Arc<ServedCertificate>, expiry_gauge: IntGauge, clock: Arc<dyn Clock>) -> LoadContents {
    Box::new(move |contents| {
        let [chain, key] = contents.as_slice() else { return Err("two files are expected".to_owned()) };
        let certificate = Certificate::from_contents(chain, key).map_err(reason)?;
        let expiry = served.replace(&certificate, clock.now()).map_err(reason)?;
        expiry_gauge.set(expiry.seconds());
        Ok(format!("a certificate that expires at {}", format_time(expiry)))
    })
}

fn load_issuer_file(verifier: Arc<HumanTokenVerifier>, iss: String, kind: IssuerFile) -> LoadContents {
    Box::new(move |contents| {
        let content = contents.first().ok_or("no file")?;
        let issuer = verifier.issuer(&iss).ok_or("the issuer is not configured")?;
        match kind {
            IssuerFile::Keys => load_keys(issuer, content).map_err(reason),
            IssuerFile::Authorities => load_authorities(issuer, content).map_err(reason),
        }
    })
}

fn load_keys(issuer: &Issuer, json: &[u8]) -> Result<String, InvalidJwkSet> {
    Ok(format!("{} usable keys of the issuer {}", issuer.replace_keys(json)?, issuer.iss()))
}

fn load_authorities(issuer: &Issuer, pem: &[u8]) -> Result<String, KeySourceError> {
    issuer.replace_authorities(pem)?;
    Ok(format!("certificate authorities for the next fetch of the keys of {}", issuer.iss()))
}
