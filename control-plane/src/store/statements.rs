//! A macro that declares SQL statements as constants.
//!
//! Each file of the store declares its statements in one list per engine. The conformance tests prepare every statement on
//! its engine or engines, and refuse SQL outside of the lists.
//!
//! SQLite prepares a statement again at each execution if the plan can depend on the value of a parameter, which takes longer than many
//! statements themselves. A parameter that is a whole limit or a whole pattern is such a one; `LIMIT $1 + 0` is not.

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
