//! How many requests pass, with the limits that are shipped, by a clock that goes on when it is told to.
//!
//! `auth` is about agents, `callers` about services and people, `clients` about our own, `spellings` about ways around; `fixture` has the
//! control plane, in this process so that its clock can be moved, over real sockets.

#![expect(clippy::unwrap_used, reason = "a test says what it expects")]

mod auth;
mod callers;
mod clients;
mod fixture;
mod spellings;
