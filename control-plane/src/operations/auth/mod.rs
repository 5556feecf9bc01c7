//! Authentication: challenge, login, refresh, revocation and verification of tokens.

mod challenge;
mod failed_logins;
mod issue;
mod login;
mod refresh;
mod revoke;
mod signed_text;
mod tokens;
mod verify;

pub use challenge::issue_challenge;
pub use failed_logins::flush_suppressed_bursts;
pub use login::{LoginRequest, begin_session, parse_assertion, verify_assertion, verify_login};
pub use refresh::{refresh_session, verify_refresh};
pub use revoke::revoke_token;
pub use tokens::{RequestedToken, TokenPair, find_refresh_token_agent};
pub use verify::{Verified, verify_token};
