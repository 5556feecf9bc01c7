//! `secrets rotate`: rotates the master key, while control planes serve.

use super::{
    AppError, CommandReport,
    database::{lock_shared, master_keys, open_existing},
    install_crypto_provider,
};
use crate::{
    config::Config,
    keyring::{Keyring, MasterKeyError},
    operations::{MasterKeyRotation, rotate_master_key},
};
use countersign_process::SystemRng;

/// Makes `secrets.master_key` the current master key of the database, and encrypts all secrets in the database with it.
pub async fn rotate_secrets(config: &Config) -> Result<CommandReport, AppError> {
    install_crypto_provider();
    let master = master_keys(config)?;
    let _lock = lock_shared(config)?;
    let store = open_existing(config, &master).await?;
    let fingerprint = master.configured().fingerprint();
    let keyring = Keyring::new(master);
    let rotation = rotate_master_key(&store, &keyring, &SystemRng).await?;
    store.close().await;
    report(&fingerprint, &rotation, config.secrets.previous().next().is_some())
}

/// The fingerprints of the configured master keys, a line for each. Empty if the file of the master key does not exist yet.
pub fn describe_master_keys(config: &Config) -> Result<String, AppError> {
    match master_keys(config) {
        Ok(keys) => {
            let previous = keys.previous_fingerprints().into_iter();
            let previous = previous.map(|key| format!("previous master key: fingerprint {key}\n"));
            Ok(format!("master key: fingerprint {}\n{}", keys.configured().fingerprint(), previous.collect::<String>()))
        }
        Err(AppError::MasterKey(MasterKeyError::Missing(_))) => Ok(String::new()),
        Err(error) => Err(error),
    }
}

fn report(fingerprint: &str, rotation: &MasterKeyRotation, has_previous: bool) -> Result<CommandReport, AppError> {
    let MasterKeyRotation { removed, resealed, unchanged, unreadable, chains, unchanged_chains, broken_chains } =
        rotation;
    let mut report = CommandReport::default();
    report.line(format!("The current master key is secrets.master_key (fingerprint {fingerprint})."));
    report.line(format!("Secrets: {resealed} were encrypted again with this key, {unchanged} already used it."));
    report.line(format!(
        "Audit chains: {chains} were verified and authenticated with this key, {unchanged_chains} already used it and \
         were not verified."
    ));
    for (chain, broken) in broken_chains {
        report.line(format!("Audit chain {}: {broken}. It stays broken.", chain.escape_debug()));
    }
    if !unreadable.is_empty() {
        for owner in unreadable {
            report.line(format!("No configured master key decrypts the {owner}."));
        }
        return AppError::refuse(format!(
            "{report}\nThe previous master keys must stay in secrets.previous_master_keys: add the missing key to that setting, \
             or rotate or delete these secrets; then run this command again"
        ));
    }
    report.line(match removed.as_slice() {
        [] if has_previous => {
            "No previous master key is needed: remove secrets.previous_master_keys from the settings.".to_owned()
        }
        [] => "No previous master key is needed, and none is configured.".to_owned(),
        removed => format!(
            "The database no longer needs the master keys with these fingerprints: {}. Remove them from \
             secrets.previous_master_keys of all control planes. Keep them elsewhere, as long as you keep backups from before now.",
            removed.join(", ")
        ),
    });
    Ok(report)
}
