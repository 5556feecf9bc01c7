//! x
pub mod domain;
pub mod humans;
pub mod keyring;
pub mod operations;
pub mod store;
