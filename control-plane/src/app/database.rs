//! How the database is opened: where it is, whose it must be, and who works with it.

use super::AppError;
use crate::{
    config::{Config, DatabaseLocation},
    files::{self, FileLock},
    keyring::{MasterKey, MasterKeyError},
    metrics::Metrics,
    store::{
        OpenMode, Read, Store, StoreError, StoreOptions, Write,
        deployment::{self, Deployment, QuarantineReason},
    },
};
use countersign_identity::Timestamp;
use countersign_process::{Clock, SystemClock, SystemRng};
use secrecy::ExposeSecret;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// Opens the database of the settings.
pub(super) async fn open(
    config: &Config,
    purpose: OpenMode,
    master: &MasterKey,
    clock: Arc<dyn Clock>,
    metrics: &Metrics,
) -> Result<Store, AppError> {
    open_at(place(config)?, config, (purpose, master), clock, metrics).await
}

/// Opens a database that is somewhere else.
pub(super) async fn open_at(
    place: DatabaseLocation,
    config: &Config,
    (purpose, master): (OpenMode, &MasterKey),
    clock: Arc<dyn Clock>,
    metrics: &Metrics,
) -> Result<Store, AppError> {
    let equipment = StoreOptions {
        clock,
        audit_keys: Arc::new(master.audit_keys()),
        metrics: metrics.store.clone(),
        master_key_fingerprint: master.fingerprint(),
    };
    warn_of_strangers(&place);
    match place {
        DatabaseLocation::File(path) => {
            // SQLite gives the files beside it the same mode.
            if purpose == OpenMode::Serve {
                files::create_private_file(&path).map_err(AppError::file(&path))?;
            }
            Ok(Store::open_sqlite(purpose, &path, equipment).await?)
        }
        DatabaseLocation::Postgres(url) => {
            Ok(Store::open_postgres(purpose, &url, config.database.max_connections, equipment).await?)
        }
    }
}

/// Says so if whoever answers at the URL may be somebody else.
pub(super) fn warn_of_strangers(place: &DatabaseLocation) {
    if !place.is_authenticated() {
        tracing::warn!(
            "database.url: nobody knows which server that is: add sslmode=verify-full, and sslrootcert=<PEM file> if its authority is your own"
        );
    }
}

/// Refuses a database of another master key, or of the other kind of deployment.
pub(super) async fn belong_together(
    store: &Store,
    master: &MasterKey,
    dev_since: Option<Timestamp>,
) -> Result<(), AppError> {
    let wanted = Deployment { master_key_fingerprint: master.fingerprint(), dev_since };
    let kept = store.find_or_create_deployment(&wanted).await?;
    agree(&kept, &wanted)?;
    fit_to_serve(store).await
}

/// Refuses the database of another master key, or of the other kind of deployment.
fn agree(kept: &Deployment, wanted: &Deployment) -> Result<(), AppError> {
    if kept.master_key_fingerprint != wanted.master_key_fingerprint {
        return Err(StoreError::WrongMasterKey.into());
    }
    match (kept.dev_since, wanted.dev_since) {
        (Some(_), None) => Err(AppError::DatabaseRejected(
            "this database was made by --dev and is refused without it: set another data_dir",
        )),
        (None, Some(_)) => {
            Err(AppError::DatabaseRejected("this is a real database, which --dev does not touch: set another data_dir"))
        }
        (None, None) | (Some(_), Some(_)) => Ok(()),
    }
}

/// The same for a command, which makes nothing.
pub(super) fn belongs(config: &Config, master: &MasterKey, found: &Deployment) -> Result<(), AppError> {
    let dev_since = config.dev.then(|| SystemClock.now());
    agree(found, &Deployment { master_key_fingerprint: master.fingerprint(), dev_since })
}

/// Refuses a database that somebody copied into place, or that everything left.
pub(super) async fn fit_to_serve(store: &Store) -> Result<(), AppError> {
    let mut read = store.read().await?;
    match deployment::find_quarantine(read.conn()).await?.map(|mark| mark.reason) {
        None => stay(store, read).await,
        Some(QuarantineReason::Backup) => Err(AppError::DatabaseRejected(
            "this database is a backup: what was revoked since it was made is good in it again. Run \
             `countersign-control-plane restore`, which ends what may have changed",
        )),
        Some(QuarantineReason::Migrating) => Err(AppError::DatabaseRejected(
            "a move of this database to PostgreSQL was interrupted, and whether everything arrived is not known here. Run \
             `countersign-control-plane migrate --to` again, with the same database. Or to stay here, see that nobody serves \
             that one, and run `countersign-control-plane restore`",
        )),
        Some(QuarantineReason::Migrated) => Err(AppError::DatabaseRejected(
            "everything in this database moved to PostgreSQL: set database.url to where it is. To come back to what was \
             here, run `countersign-control-plane restore`",
        )),
    }
}

/// Refuses a database that was made by `pg_restore`, until it is settled: the tables have other numbers than they had.
async fn stay(store: &Store, mut read: Read) -> Result<(), AppError> {
    let Some(numbers) = store.instance_fingerprint(&mut read).await? else { return Ok(()) };
    match deployment::instance_fingerprint(read.conn()).await? {
        Some(kept) if kept == numbers => return Ok(()),
        Some(_) => {
            return Err(AppError::DatabaseRejected(
                "this database was restored from a dump, or its cluster was made anew: what was revoked since that was made is good in it again. Stop all \
                 control planes and run `countersign-control-plane restore`, which ends what may have changed",
            ));
        }
        None => {}
    }
    drop(read);
    let numbers = &numbers;
    let work = async |mut tx: Write| {
        deployment::set_instance_fingerprint(tx.conn(), numbers).await?;
        tx.commit(()).await
    };
    Ok(store.write("set_instance_fingerprint", work).await?)
}

pub(super) fn place(config: &Config) -> Result<DatabaseLocation, AppError> {
    let place =
        config.database_location().ok_or(AppError::DatabaseRejected("database.url is of no engine that we know"))?;
    match place.problem() {
        Some(problem) => Err(AppError::setting("database.url", problem)),
        None => Ok(place),
    }
}

/// What the name of a database that was replaced begins with, after that of its place. A restoration that was killed may leave
/// such a name for the one that is in its place still: whoever holds that one next takes the name away.
pub(super) const KEPT: &str = ".before-";

/// What SQLite keeps beside a database.
pub(super) const BESIDE: [&str; 3] = ["-wal", "-shm", "-journal"];

/// The file whose lock says who works with an embedded database.
fn lock_of(database: &Path) -> PathBuf {
    files::with_suffix(database, ".lock")
}

/// That this process serves the embedded database, so that nobody puts another one in its place meanwhile. There is nothing to
/// hold on PostgreSQL.
pub(super) fn hold(config: &Config) -> Result<Option<FileLock>, AppError> {
    let DatabaseLocation::File(database) = place(config)? else { return Ok(None) };
    let path = lock_of(&database);
    match FileLock::shared(&path) {
        Ok(Some(lock)) => {
            files::remove_other_links(&database, KEPT, &BESIDE).map_err(AppError::file(&database))?;
            Ok(Some(lock))
        }
        Ok(None) => {
            Err(AppError::DatabaseRejected("the database is being restored or moved: start again when that is done"))
        }
        Err(error) => Err(AppError::file(&path)(error)),
    }
}

/// The same, alone: nobody serves it, restores it or moves it.
pub(super) fn hold_alone(database: &Path) -> Result<FileLock, AppError> {
    files::create_private_directory(files::parent_directory(database)).map_err(AppError::file(database))?;
    let path = lock_of(database);
    let lock = FileLock::exclusive(&path).map_err(AppError::file(&path))?;
    files::chown_to_directory_owner(&path).map_err(AppError::file(&path))?;
    let lock = lock.ok_or(AppError::DatabaseRejected(
        "a control plane runs on this database, or it is being restored or moved: stop that first",
    ))?;
    files::remove_other_links(database, KEPT, &BESIDE).map_err(AppError::file(database))?;
    Ok(lock)
}

/// The master key, which must be there.
pub(super) fn master_key(config: &Config) -> Result<MasterKey, AppError> {
    match config.secrets.master_key.expose_secret() {
        "" => {
            let path = config.data_dir.join("master.key");
            if !path.exists() {
                return Err(MasterKeyError::Missing(path.display().to_string()).into());
            }
            Ok(MasterKey::from_file(&path, &SystemRng)?)
        }
        hex => Ok(MasterKey::from_hex(hex)?),
    }
}
