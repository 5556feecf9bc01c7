//! Declares SQL statements as constants.
//!
//! A file of the store declares all its statements in one list. The conformance tests prepare every statement of every list
//! on each engine that it is meant for, and refuse SQL outside a list.

/// Declares constants of SQL, and a list of them for the conformance tests. Form: `LIST: NAME = "SQL"; …`.
macro_rules! statements {
    ($list:ident: $($(#[$doc:meta])* $name:ident = $sql:expr;)+) => {
        $($(#[$doc])* const $name: &str = $sql;)+

        /// All statements above, for the conformance tests.
        #[cfg(test)]
        pub(in crate::store) const $list: &[&str] = &[$($name),+];
    };
}

pub(super) use statements;
