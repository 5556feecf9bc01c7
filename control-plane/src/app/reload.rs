//! The files that are loaded again when they change: the TLS certificate, keys and certificate authorities of issuers, and
//! certificates for Redis and webhooks.

use super::{humans::ConfiguredIssuer, redis};
use crate::{
    certificates::{Certificate, CertificateError, ServedCertificate},
    config::{Config, RedisSettings},
    domain::timestamp::format_rfc3339,
    ephemeral::RedisClient,
    humans::{HumanTokenVerifier, OperatorKey},
    metrics::Metrics,
    webhooks::HttpSender,
};
use countersign_process::{
    Clock,
    file_reload::{FileReloader, LoadContents, LoadedFiles},
};
use prometheus::IntGauge;
use secrecy::ExposeSecret;
use std::sync::Arc;

/// Creates the reloaders. There is one for each setting that names files.
pub(super) struct Reloaders<'a> {
    clock: &'a Arc<dyn Clock>,
    metrics: &'a Metrics,
    pub(super) created: Vec<FileReloader>,
}

/// The reason in the log when files cannot be used.
fn reason(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl<'a> Reloaders<'a> {
    pub(super) const fn new(clock: &'a Arc<dyn Clock>, metrics: &'a Metrics) -> Self {
        Self { clock, metrics, created: Vec::new() }
    }

    fn add(&mut self, files: LoadedFiles, load: LoadContents) {
        self.created.push(FileReloader::new(files, load, &self.metrics.file_reloads, self.clock.clone()));
    }

    /// Returns the certificate to serve. If it was read from files, it is replaced when they change.
    pub(super) fn served_certificate(
        &mut self,
        config: &Config,
        certificate: &Certificate,
    ) -> Result<Arc<ServedCertificate>, CertificateError> {
        let expiry_gauge = self.metrics.certificate_expiry.clone();
        expiry_gauge.set(certificate.expires_at()?.seconds());
        let served = ServedCertificate::new(certificate)?;
        if let Err(error) = certificate.check_validity(self.clock.now()) {
            tracing::warn!(%error, "clients refuse this certificate: replace the files; no restart is needed");
        }
        let (chain, key) = (config.tls.certificate.as_path(), config.tls.private_key.as_path());
        if !chain.as_os_str().is_empty() {
            let contents = [(chain, certificate.chain.as_bytes()), (key, certificate.key.expose_secret().as_bytes())];
            let files = LoadedFiles::new("tls.certificate", &contents);
            self.add(files, load_certificate(Arc::clone(&served), expiry_gauge, self.clock.clone()));
        }
        Ok(served)
    }

    /// Returns the verifier of human users' tokens. The files of its issuers are loaded again when they change.
    pub(super) fn human_verifier(
        &mut self,
        operator_key: Option<Arc<OperatorKey>>,
        configured: Vec<ConfiguredIssuer>,
    ) -> Arc<HumanTokenVerifier> {
        let mut issuers = Vec::new();
        for ConfiguredIssuer { issuer, file } in configured {
            let issuer = Arc::new(issuer);
            if let Some(file) = file {
                let issuer = issuer.clone();
                self.add(file, Box::new(move |contents| issuer.load_file(contents.first().ok_or("no file")?)));
            }
            issuers.push(issuer);
        }
        Arc::new(HumanTokenVerifier::new(operator_key, issuers))
    }

    /// Returns the sender of events. The file of its certificate authorities is loaded again when it changes.
    pub(super) fn event_sender(&mut self, sender: HttpSender, file: Option<LoadedFiles>) -> Arc<HttpSender> {
        let sender = Arc::new(sender);
        if let Some(file) = file {
            let sender = sender.clone();
            let load: LoadContents = Box::new(move |contents| {
                sender.replace_authorities(contents.first().ok_or("no file")?)?;
                Ok("certificate authorities for the next attempts of deliveries".to_owned())
            });
            self.add(file, load);
        }
        sender
    }

    /// Replaces the certificates of the Redis client when their files change.
    pub(super) fn add_redis_certificates(
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
        Ok(format!("a certificate that expires at {}", format_rfc3339(expiry)))
    })
}
