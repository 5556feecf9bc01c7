//! The database of a control plane, as whoever holds its files sees it: every row, and the key that signs.

use crate::ControlPlane;
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use p256::{SecretKey, ecdsa::SigningKey, pkcs8::DecodePrivateKey};
use sqlx::{AnyConnection, AssertSqlSafe, Connection, Executor};
use std::collections::BTreeSet;

/// A reader of the database beside the running server.
pub struct Database {
    connection: AnyConnection,
    dialect: &'static Dialect,
}

/// How each engine is asked the same.
struct Dialect {
    /// So that all that is read is of the same moment.
    begin: &'static str,
    tables: &'static str,
    /// With the name of the table bound.
    columns: &'static str,
    /// Around the name of a column: any value as text, and nothing as `NULL`.
    value: [&'static str; 2],
}

const SQLITE: Dialect = Dialect {
    begin: "BEGIN",
    tables: "SELECT name FROM sqlite_master WHERE type = 'table'",
    columns: "SELECT name FROM pragma_table_info($1)",
    value: ["quote(\"", "\")"],
};

const POSTGRES: Dialect = Dialect {
    begin: "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
    tables: "SELECT CAST(tablename AS TEXT) FROM pg_tables WHERE schemaname = 'public'",
    columns: "SELECT CAST(column_name AS TEXT) FROM information_schema.columns WHERE table_name = $1 ORDER BY ordinal_position",
    value: ["quote_nullable(\"", "\")"],
};

impl Database {
    /// Opens it for reading.
    pub async fn of(at: &ControlPlane) -> Self {
        Self::at(&at.database_url()).await
    }

    /// The same, of any control plane.
    pub async fn at(url: &str) -> Self {
        sqlx::any::install_default_drivers();
        let read_only = || (&SQLITE, format!("{url}?mode=ro"));
        let (dialect, url) = if url.starts_with("sqlite:") { read_only() } else { (&POSTGRES, url.to_owned()) };
        Self { connection: AnyConnection::connect(&url).await.expect("the database opens"), dialect }
    }

    /// Every row of every table, as text, all of the same moment.
    pub async fn rows(&mut self) -> BTreeSet<String> {
        self.connection.execute(self.dialect.begin).await.expect("a transaction");
        let rows = self.read_rows().await;
        self.connection.execute("COMMIT").await.expect("a transaction");
        rows
    }

    async fn read_rows(&mut self) -> BTreeSet<String> {
        let (mut rows, [open, close]) = (BTreeSet::new(), self.dialect.value);
        for table in self.texts(self.dialect.tables).await {
            let columns = sqlx::query_scalar(self.dialect.columns).bind(table.clone());
            let columns: Vec<String> = columns.fetch_all(&mut self.connection).await.expect("the database answers");
            let row: Vec<_> = columns.iter().map(|column| format!("{open}{column}{close}")).collect();
            let all = format!("SELECT '{table} ' || {} FROM \"{table}\"", row.join(" || ' ' || "));
            rows.extend(self.texts(&all).await);
        }
        rows
    }

    /// The `kid` of the newest signing key, and the key, opened with the master key of `at`.
    pub async fn signing_key(&mut self, at: &ControlPlane) -> (String, SigningKey) {
        let newest = |column: &str| {
            format!("SELECT {column} FROM signing_keys WHERE signs_from IS NOT NULL ORDER BY signs_from DESC LIMIT 1")
        };
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

    /// What a query gives, one text each.
    pub async fn texts(&mut self, sql: &str) -> Vec<String> {
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(&mut self.connection).await.expect("the database answers")
    }
}
