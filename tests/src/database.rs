//! Reads the database of a control plane directly: all rows, and the private signing key. Also changes the database, for states
//! that no request can create.

use crate::{ControlPlane, eventually};
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use p256::{SecretKey, ecdsa::SigningKey, pkcs8::DecodePrivateKey};
use sqlx::{AnyConnection, AssertSqlSafe, Connection, Executor};
use std::collections::BTreeSet;

/// A separate connection to the database of a running server.
pub struct Database {
    connection: AnyConnection,
    dialect: &'static Dialect,
}

/// The SQL statements that differ between SQLite and PostgreSQL.
struct Dialect {
    /// Begins a transaction with a consistent snapshot.
    begin: &'static str,
    /// Returns the table names.
    tables: &'static str,
    /// Returns the column names of the table `$1`.
    columns: &'static str,
    /// SQL before and after a column name, which converts any value of the column to text, and NULL to the text `NULL`.
    to_text: [&'static str; 2],
}

const SQLITE: Dialect = Dialect {
    begin: "BEGIN",
    tables: "SELECT name FROM sqlite_master WHERE type = 'table'",
    columns: "SELECT name FROM pragma_table_info($1)",
    to_text: ["quote(\"", "\")"],
};

const POSTGRES: Dialect = Dialect {
    begin: "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
    tables: "SELECT CAST(tablename AS TEXT) FROM pg_tables WHERE schemaname = 'public'",
    columns: "SELECT CAST(column_name AS TEXT) FROM information_schema.columns WHERE table_name = $1 ORDER BY ordinal_position",
    to_text: ["quote_nullable(\"", "\")"],
};

impl Database {
    /// Connects to the database of a control plane, read-only on SQLite.
    pub async fn connect_to(control: &ControlPlane) -> Self {
        Self::connect(&control.database_url()).await
    }

    /// Connects to a database URL, read-only on SQLite.
    pub async fn connect(url: &str) -> Self {
        Self::open(&if url.starts_with("sqlite:") { format!("{url}?mode=ro") } else { url.to_owned() }).await
    }

    /// Connects to the database of a control plane, to change it.
    pub async fn connect_to_write(control: &ControlPlane) -> Self {
        Self::open(&control.database_url()).await
    }

    /// Connects to a database URL, to change the database.
    pub async fn open(url: &str) -> Self {
        sqlx::any::install_default_drivers();
        let dialect = if url.starts_with("sqlite:") { &SQLITE } else { &POSTGRES };
        Self { connection: AnyConnection::connect(url).await.expect("the database accepts connections"), dialect }
    }

    /// Executes statements, and returns the number of affected rows.
    pub async fn execute(&mut self, sql: &str) -> u64 {
        let result = self.connection.execute(AssertSqlSafe(sql)).await;
        result.unwrap_or_else(|error| panic!("{sql}: {error}")).rows_affected()
    }

    /// Every row of every table as text, such as `roles id='role_…' name='reader'`, from one snapshot, without the column `purge_at`.
    pub async fn rows(&mut self) -> BTreeSet<String> {
        self.connection.execute(self.dialect.begin).await.expect("the statement succeeds");
        let rows = self.read_rows().await;
        self.connection.execute("COMMIT").await.expect("the statement succeeds");
        rows
    }

    async fn read_rows(&mut self) -> BTreeSet<String> {
        let (mut rows, [open, close]) = (BTreeSet::new(), self.dialect.to_text);
        for table in self.text_column(self.dialect.tables).await {
            let columns = sqlx::query_scalar(self.dialect.columns).bind(table.clone());
            let mut columns: Vec<String> = columns.fetch_all(&mut self.connection).await.expect("the query succeeds");
            // Leave out this column, because housekeeping changes it at any time after a deletion.
            columns.retain(|column| column != "purge_at");
            let row: Vec<_> = columns.iter().map(|column| format!("'{column}=' || {open}{column}{close}")).collect();
            let select_rows = format!("SELECT '{table} ' || {} FROM \"{table}\"", row.join(" || ' ' || "));
            rows.extend(self.text_column(&select_rows).await);
        }
        rows
    }

    /// The `kid` of the newest signing key and the private key, decrypted with the master key of `control`.
    pub async fn signing_key(&mut self, control: &ControlPlane) -> (String, SigningKey) {
        let newest_sql = |column: &str| {
            format!("SELECT {column} FROM signing_keys WHERE signs_from IS NOT NULL ORDER BY signs_from DESC LIMIT 1")
        };
        let kid = self.text_column(&newest_sql("kid")).await.remove(0);
        let sealed =
            hex::decode(self.text_column(&newest_sql("sealed_private")).await.remove(0)).expect("the text is hex");
        let (nonce, sealed) = sealed.split_at(NONCE_LEN);
        let master = hex::decode(control.master_key()).expect("the text is hex");
        let cipher = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &master).expect("the master key has 32 bytes"));
        let nonce = Nonce::try_assume_unique_for_key(nonce).expect("the nonce has 12 bytes");
        let mut private = sealed.to_vec();
        let aad = format!("signing key {kid}");
        let private = cipher
            .open_in_place(nonce, Aad::from(aad.as_bytes()), &mut private)
            .expect("the master key decrypts the private key");
        (kid, SigningKey::from(&SecretKey::from_pkcs8_der(private).expect("the private key is valid")))
    }

    /// The number that a query returns.
    pub async fn number(&mut self, sql: &str) -> i64 {
        let result = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&mut self.connection).await;
        result.unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// The number of rows of a table, which may be followed by a condition.
    pub async fn count(&mut self, rows: &str) -> i64 {
        self.number(&format!("SELECT CAST(COUNT(*) AS BIGINT) FROM {rows}")).await
    }

    /// Waits until [`Self::count`] returns 0 for `rows`. After a timeout, the panic contains `log`.
    pub async fn wait_until_none(&mut self, rows: &str, log: impl Fn() -> String) {
        let is_gone = async || (self.count(rows).await == 0).then_some(());
        eventually(&format!("there is no row in {rows}"), is_gone, log).await;
    }

    /// Closes the connection.
    pub async fn close(self) {
        self.connection.close().await.expect("the connection can be closed");
    }

    /// Runs a query with one text column and returns its values.
    pub async fn text_column(&mut self, sql: &str) -> Vec<String> {
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(&mut self.connection).await.expect("the query succeeds")
    }
}
