//! The files that are loaded again when they change: the TLS certificate, keys and certificate authorities of issuers, and
//! certificates for Redis and webhooks.

use super::{humans::ConfiguredIssuer, redis};
use crate::{
    config::{Config, RedisSettings},
    ephemeral::RedisClient,
    humans::{HumanTokenVerifier, OperatorKey},
    metrics::Metrics,
    webhooks::HttpSender,
};
use countersign_process::{
    Clock,
    certificates::{Certificate, CertificateError, ServedCertificate},
    file_reload::{FileReloader, LoadContents, LoadedFiles},
};
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
        let expiry = self.metrics.certificate_expiry.clone();
        let served = ServedCertificate::new(certificate, expiry, self.clock.now())?;
        let (chain, key) = (config.tls.certificate.as_path(), config.tls.private_key.as_path());
        if !chain.as_os_str().is_empty() {
            self.add(certificate.files(chain, key), served.load_changed_files(self.clock.clone()));
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
