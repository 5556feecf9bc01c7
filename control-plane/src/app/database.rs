//! Opens the configured database, checks that it belongs to this deployment, and locks its file if it is embedded.

use super::AppError;
use crate::{
    config::{Config, DatabaseLocation},
    files::{self, FileLock},
    keyring::{MasterKey, MasterKeyError, MasterKeyRing},
    metrics::{LabelValues, Metrics},
    store::{
        OpenMode, ReadTransaction, Store, StoreError, StoreOptions, WriteTransaction,
        deployment::{self, Deployment, QuarantineReason},
        master_keys::{self, MasterKeysInUse},
    },
};
use countersign_identity::Timestamp;
use countersign_process::{Clock, Rng, SystemClock};
use secrecy::ExposeSecret;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// Opens a database for a command, which exposes no metrics.
pub(super) async fn open_for_command(
    location: DatabaseLocation,
    config: &Config,
    mode: OpenMode,
    master: &MasterKeyRing,
) -> Result<Store, AppError> {
    let metrics = Metrics::new(&LabelValues::default())?;
    open(location, config, mode, master, Arc::new(SystemClock), &metrics).await
}

async fn open(
    location: DatabaseLocation,
    config: &Config,
    mode: OpenMode,
    master: &MasterKeyRing,
    clock: Arc<dyn Clock>,
    metrics: &Metrics,
) -> Result<Store, AppError> {
    let options = StoreOptions { clock, audit_keys: Arc::new(master.audit_keys()), metrics: metrics.store.clone() };
    warn_if_server_unauthenticated(&location);
    match location {
        DatabaseLocation::File(path) => {
            // Make the file private first: SQLite creates its companion files, such as the write-ahead log, with the same mode.
            if mode == OpenMode::Serve {
                files::create_private_file(&path).map_err(AppError::file(&path))?;
            }
            Ok(Store::open_sqlite(mode, &path, options).await?)
        }
        DatabaseLocation::Postgres(url) => {
            Ok(Store::open_postgres(mode, &url, config.database.max_connections, options).await?)
        }
    }
}

/// Warns if the connection does not authenticate the database server.
pub(super) fn warn_if_server_unauthenticated(location: &DatabaseLocation) {
    if !location.is_authenticated() {
        tracing::warn!(
            "database.url: the connection does not authenticate the server: add sslmode=verify-full, and sslrootcert=<PEM file> for a private CA"
        );
    }
}

/// Creates the row that describes the deployment in a new database. Fails if an existing database belongs to another master key or
/// must not be served ([`refuse_quarantined`]), or if it was created with --dev and is opened without it, or the other way round.
pub(super) async fn ensure_deployment(
    store: &Store,
    master: &MasterKeyRing,
    dev_since: Option<Timestamp>,
) -> Result<(), AppError> {
    let new = Deployment { master_key_fingerprint: master.configured().fingerprint(), dev_since };
    let stored = deployment::find_or_create(store, &new).await?;
    check_deployment(&stored, master, dev_since)?;
    refuse_missing_master_keys(store, master).await?;
    if stored.master_key_fingerprint != master.configured().fingerprint() {
        let current = stored.master_key_fingerprint;
        tracing::info!(%current, "secrets.master_key takes effect with `countersign-control-plane secrets rotate`");
    }
    refuse_quarantined(store).await
}

/// Fails if the database needs a master key that is not configured: the current key, or a previous key during a rotation.
pub(super) async fn refuse_missing_master_keys(store: &Store, master: &MasterKeyRing) -> Result<(), AppError> {
    let MasterKeysInUse { current, previous } = master_keys::find(store.read().await?.conn()).await?;
    let missing = std::iter::once(&current).chain(&previous).find(|fingerprint| !master.contains(fingerprint));
    if let Some(missing) = missing {
        return Err(StoreError::MissingMasterKey(missing.clone()).into());
    }
    Ok(())
}

/// The error for a database whose master key is not configured.
pub(super) fn wrong_master_key(stored: &Deployment, master: &MasterKeyRing) -> AppError {
    let (needed, configured) = (stored.master_key_fingerprint.clone(), master.configured().fingerprint());
    StoreError::WrongMasterKey { needed, configured }.into()
}

fn check_deployment(stored: &Deployment, master: &MasterKeyRing, dev_since: Option<Timestamp>) -> Result<(), AppError> {
    if !master.contains(&stored.master_key_fingerprint) {
        return Err(wrong_master_key(stored, master));
    }
    match (stored.dev_since, dev_since) {
        (Some(_), None) => Err(AppError::DatabaseRejected(
            "this database was created with --dev and cannot be used without it: set another data_dir",
        )),
        (None, Some(_)) => Err(AppError::DatabaseRejected(
            "this is a production database and cannot be used with --dev: set another data_dir",
        )),
        (None, None) | (Some(_), Some(_)) => Ok(()),
    }
}

/// Checks the row of the deployment for an offline command, as [`ensure_deployment`] does, but never creates it.
pub(super) fn check_existing_deployment(
    config: &Config,
    master: &MasterKeyRing,
    stored: &Deployment,
) -> Result<(), AppError> {
    check_deployment(stored, master, config.dev.then(|| SystemClock.now()))
}

/// Opens an existing database for a command that changes it while control planes serve. Never creates one.
pub(super) async fn open_existing(config: &Config, master: &MasterKeyRing) -> Result<Store, AppError> {
    let location = location(config)?;
    let inspected = open_for_command(location.clone(), config, OpenMode::Inspect, master).await?;
    let stored = deployment::find(inspected.read().await?.conn()).await?;
    let stored = stored.ok_or(AppError::DatabaseRejected("this database is empty"))?;
    inspected.close().await;
    // Check first, because opening the database to serve it migrates the schema.
    check_existing_deployment(config, master, &stored)?;
    let store = open_for_command(location, config, OpenMode::Serve, master).await?;
    refuse_missing_master_keys(&store, master).await?;
    refuse_quarantined(&store).await?;
    Ok(store)
}

/// Fails if the database is a backup, was migrated elsewhere, or was restored from a dump.
pub(super) async fn refuse_quarantined(store: &Store) -> Result<(), AppError> {
    let mut read = store.read().await?;
    match deployment::find_quarantine(read.conn()).await? {
        None => refuse_restored_dump(store, read).await,
        Some(mark) => Err(AppError::DatabaseRejected(why_quarantined(mark.reason))),
    }
}

/// Why a database with a quarantine mark is not served, and what to do.
pub(super) const fn why_quarantined(reason: QuarantineReason) -> &'static str {
    match reason {
        QuarantineReason::Backup => {
            "this database is a backup: credentials that were revoked after the backup are valid in it. Run \
             `countersign-control-plane restore`, which revokes all credentials that may have changed"
        }
        QuarantineReason::Migrating => {
            "a migration of this database to PostgreSQL was interrupted, and it is unknown whether it completed. Run \
             `countersign-control-plane migrate --to` again, with the same database. To stay with this database instead, make \
             sure that the other one is not served, and run `countersign-control-plane restore`"
        }
        QuarantineReason::Migrated => {
            "this database was migrated to PostgreSQL: set database.url to it. To return to this database, run \
             `countersign-control-plane restore`"
        }
    }
}

/// Fails for a PostgreSQL database that `pg_restore` created, until `restore` is run. We recognize the database because the
/// fingerprint of its instance differs from the stored one.
async fn refuse_restored_dump(store: &Store, mut read: ReadTransaction) -> Result<(), AppError> {
    let Some(fingerprint) = store.instance_fingerprint(&mut read).await? else { return Ok(()) };
    match deployment::find_instance_fingerprint(read.conn()).await? {
        Some(stored) if stored == fingerprint => return Ok(()),
        Some(_) => {
            return Err(AppError::DatabaseRejected(
                "this database was restored from a dump, or its cluster was recreated: credentials that were revoked after the dump \
                 are valid in it. Stop all control planes and run `countersign-control-plane restore`, which revokes all credentials \
                 that may have changed",
            ));
        }
        // The database has no fingerprint yet, so store it.
        None => {}
    }
    drop(read);
    let fingerprint = &fingerprint;
    let work = async |mut tx: WriteTransaction| {
        deployment::set_instance_fingerprint(tx.conn(), fingerprint).await?;
        tx.commit(()).await
    };
    Ok(store.write("set_instance_fingerprint", work).await?)
}

pub(super) fn location(config: &Config) -> Result<DatabaseLocation, AppError> {
    let location = config
        .database_location()
        .ok_or(AppError::DatabaseRejected("database.url names an engine that is not supported"))?;
    match location.problem() {
        Some(problem) => Err(AppError::setting("database.url", problem)),
        None => Ok(location),
    }
}

/// `restore` keeps the replaced database under a new name, with `.before-` and the time appended. If `restore` is killed, such a
/// name may be a hard link to the current database; [`lock_shared`] and [`lock_exclusive`] remove this link.
pub(super) const REPLACED_INFIX: &str = ".before-";

/// Suffixes of the companion files that SQLite creates in the directory of a database.
pub(super) const SQLITE_SUFFIXES: [&str; 3] = ["-wal", "-shm", "-journal"];

fn lock_path(database: &Path) -> PathBuf {
    files::with_suffix(database, ".lock")
}

/// The server of an embedded database locks this file, so that no second server uses the database. Commands that work beside a
/// server do not lock it. If a path is a symbolic link, the lock file is beside the database to which the link leads.
fn server_lock_path(database: &Path) -> PathBuf {
    files::with_suffix(&database.canonicalize().unwrap_or_else(|_| database.to_owned()), ".server-lock")
}

/// While a server holds these locks, no command can replace its embedded database, and no other server can use it.
pub(super) struct ServerLock {
    _database: FileLock,
    _server: FileLock,
}

/// Locks the embedded database for its server. Fails if another server uses it. `None` on PostgreSQL, which needs no lock.
pub(super) fn lock_to_serve(config: &Config) -> Result<Option<ServerLock>, AppError> {
    let DatabaseLocation::File(database) = location(config)? else { return Ok(None) };
    let Some(database_lock) = lock_shared(config)? else { return Ok(None) };
    let path = server_lock_path(&database);
    let server_lock = FileLock::exclusive(&path).map_err(AppError::file(&path))?;
    files::chown_to_directory_owner(&path).map_err(AppError::file(&path))?;
    let server_lock = server_lock.ok_or(AppError::DatabaseInUse(database))?;
    Ok(Some(ServerLock { _database: database_lock, _server: server_lock }))
}

/// Locks the embedded database, so that no command replaces it. `None` on PostgreSQL, which needs no lock.
pub(super) fn lock_shared(config: &Config) -> Result<Option<FileLock>, AppError> {
    let DatabaseLocation::File(database) = location(config)? else { return Ok(None) };
    let path = lock_path(&database);
    match FileLock::shared(&path) {
        Ok(Some(lock)) => {
            files::remove_second_names(&database, REPLACED_INFIX, &SQLITE_SUFFIXES)
                .map_err(AppError::file(&database))?;
            Ok(Some(lock))
        }
        Ok(None) => {
            Err(AppError::DatabaseRejected("the database is being restored or migrated: start again afterwards"))
        }
        Err(error) => Err(AppError::file(&path)(error)),
    }
}

/// Locks the embedded database against servers and other commands.
pub(super) fn lock_exclusive(database: &Path) -> Result<FileLock, AppError> {
    files::create_private_directory(files::parent_directory(database)).map_err(AppError::file(database))?;
    let path = lock_path(database);
    let lock = FileLock::exclusive(&path).map_err(AppError::file(&path))?;
    files::chown_to_directory_owner(&path).map_err(AppError::file(&path))?;
    let lock = lock.ok_or(AppError::DatabaseRejected(
        "a control plane uses this database, or it is being restored or migrated: stop that process first",
    ))?;
    files::remove_second_names(database, REPLACED_INFIX, &SQLITE_SUFFIXES).map_err(AppError::file(database))?;
    Ok(lock)
}

/// Loads the master keys. Fails if the file of the master key is missing, because only the server generates a master key.
pub(super) fn master_keys(config: &Config) -> Result<MasterKeyRing, AppError> {
    let missing = || MasterKeyError::Missing(master_key_file(config).display().to_string());
    ring(config, configured_master_key(config)?.ok_or_else(missing)?)
}

/// Loads the master keys, and opens the database to serve it. If the file of the master key is missing, generates a key, but only
/// for a new database: an existing one could not be decrypted with it, and the new file could be mistaken for its key.
pub(super) async fn open_to_serve(
    config: &Config,
    clock: &Arc<dyn Clock>,
    rng: &dyn Rng,
    metrics: &Metrics,
) -> Result<(Store, MasterKeyRing), AppError> {
    let (loaded, file) = (configured_master_key(config)?, master_key_file(config));
    if config.secrets.master_key.expose_secret().is_empty() {
        warn_if_others_have_access("the master key", &file);
    }
    let is_loaded = loaded.is_some();
    let master_keys = ring(config, loaded.unwrap_or_else(|| MasterKey::generate(rng)))?;
    let store = match open(location(config)?, config, OpenMode::Serve, &master_keys, clock.clone(), metrics).await {
        Err(AppError::Store(StoreError::WrongMasterKey { needed: _, configured: _ })) if !is_loaded => {
            return Err(MasterKeyError::Missing(file.display().to_string()).into());
        }
        opened => opened?,
    };
    // A crash before this loses the generated key, but nothing in the database is encrypted with it yet.
    if !is_loaded {
        master_keys.configured().create_file(&file)?;
    }
    Ok((store, master_keys))
}

/// The configured master key; `None` if it is in a file and the file is missing.
fn configured_master_key(config: &Config) -> Result<Option<MasterKey>, AppError> {
    Ok(match config.secrets.master_key.expose_secret() {
        "" => MasterKey::from_file(&master_key_file(config))?,
        hex => Some(MasterKey::from_hex(hex)?),
    })
}

/// Warns if any user of the machine can use a secret file of the data directory. Access for the group is fine: in Kubernetes,
/// `fsGroup` gives it.
pub(super) fn warn_if_others_have_access(secret: &str, file: &Path) {
    let Some(mode) = files::mode(file).filter(|mode| mode & 0o007 != 0) else { return };
    let (file, mode) = (file.display(), format!("{mode:04o}"));
    tracing::warn!(%file, mode, "other users of this machine have access to {secret}: run `chmod 600 {file}`");
}

fn master_key_file(config: &Config) -> PathBuf {
    config.data_dir.join("master.key")
}

fn ring(config: &Config, configured: MasterKey) -> Result<MasterKeyRing, AppError> {
    let previous = config.secrets.previous().map(MasterKey::from_previous_hex).collect::<Result<_, _>>()?;
    Ok(MasterKeyRing::new(configured, previous))
}
