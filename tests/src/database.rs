//! The database of a control plane, as whoever holds its files sees it: every row, and the key that signs.

use crate::ControlPlane;
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use p256::{SecretKey, ecdsa::SigningKey, pkcs8::DecodePrivateKey};
use sqlx::{AssertSqlSafe, Connection, Executor, SqliteConnection, sqlite::SqliteConnectOptions};
use std::collections::BTreeSet;

/// A reader of the database beside the running server.
pub struct Database(SqliteConnection);

impl Database {
    /// Opens it for reading.
    pub async fn of(at: &ControlPlane) -> Self {
        let options = SqliteConnectOptions::new().filename(at.folder().join("countersign.db")).read_only(true);
        Self(SqliteConnection::connect_with(&options).await.expect("the database opens"))
    }

    /// Every row of every table, as text, all of the same moment.
    pub async fn rows(&mut self) -> BTreeSet<String> {
        self.0.execute("BEGIN").await.expect("a transaction");
        let rows = self.read_rows().await;
        self.0.execute("COMMIT").await.expect("a transaction");
        rows
    }

    async fn read_rows(&mut self) -> BTreeSet<String> {
        let mut rows = BTreeSet::new();
        for table in self.texts("SELECT name FROM sqlite_master WHERE type = 'table'").await {
            let columns = self.texts(&format!("SELECT name FROM pragma_table_info('{table}')")).await;
            let row =
                columns.iter().map(|column| format!("quote(\"{column}\")")).collect::<Vec<_>>().join(" || ' ' || ");
            let all = format!("SELECT '{table} ' || {row} FROM \"{table}\"");
            rows.extend(self.texts(&all).await);
        }
        rows
    }

    /// The `kid` of the newest signing key, and the key, opened with the master key of `at`.
    pub async fn signing_key(&mut self, at: &ControlPlane) -> (String, SigningKey) {
        let newest = |column: &str| format!("SELECT {column} FROM signing_keys ORDER BY signs_from DESC LIMIT 1");
        let kid = self.texts(&newest("kid")).await.remove(0);
        let sealed = hex::decode(self.texts(&newest("sealed_private")).await.remove(0)).expect("hex");
        let (nonce, sealed) = sealed.split_at(NONCE_LEN);
        let master = hex::decode(at.master_key()).expect("hex");
        let cipher = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &master).expect("32 bytes"));
        let nonce = Nonce::try_assume_unique_for_key(nonce).expect("12 bytes");
        let mut private = sealed.to_vec();
        let label = format!("signing key {kid}");
        let private = cipher.open_in_place(nonce, Aad::from(label.as_bytes()), &mut private).expect("it opens");
        (kid, SigningKey::from(&SecretKey::from_pkcs8_der(private).expect("a private key")))
    }

    async fn texts(&mut self, sql: &str) -> Vec<String> {
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(&mut self.0).await.expect("the database answers")
    }
}
