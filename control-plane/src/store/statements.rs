//! A macro that declares SQL statements as constants.
//!
//! Each file of the store declares its statements in the lists `STATEMENTS` (for both engines), `SQLITE_STATEMENTS` and
//! `POSTGRES_STATEMENTS`. The conformance tests prepare each statement on its engines, and refuse SQL outside of the lists.
//!
//! SQLite's plan may depend on the value of a parameter in `LIKE $1`, and in `LIMIT $1` of a subquery. SQLite then prepares the
//! statement again at each execution, and this can take longer than the execution. So our statements say `LIKE '%' || $1` and
//! `LIMIT $1 + 0`, where SQLite ignores the value.

/// Declares SQL statements as constants, and a list of them for the conformance tests. Syntax: `LIST: NAME = "SQL"; …`.
macro_rules! statements {
    ($list:ident: $($(#[$doc:meta])* $name:ident = $sql:expr;)+) => {
        $($(#[$doc])* const $name: &str = $sql;)+

        /// All statements of this list, for the conformance tests.
        #[cfg(test)]
        pub(in crate::store) const $list: &[&str] = &[$($name),+];
    };
}

pub(super) use statements;
