//! `countersign login`, `whoami` and `logout`: the login of a human user at the organisation's OIDC issuer.
//!
//! `login` runs the device authorization grant. Invariant: the token of a login is sent only to the control plane of the
//! login, and the refresh token only to its issuer.

mod login;
mod logout;
mod whoami;

pub use login::{HELP as LOGIN_HELP, LoginArgs, login};
pub use logout::{HELP as LOGOUT_HELP, logout};
pub use whoami::{HELP as WHOAMI_HELP, whoami};
