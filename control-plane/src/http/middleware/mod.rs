//! Middleware: what runs before and after every handler.

pub(super) mod caching;
pub(super) mod counted;
pub(super) mod deadline;
pub(super) mod limits;
pub(super) mod observe;
