//! The names of the identity headers, and which headers of a request must be removed because a service could take them for these.
//!
//! Many servers normalize header names, for example for CGI: a service behind Envoy could read `x_agent_id` or `X-Agent.Id` as an
//! identity header. So names are folded before they are compared: ASCII letters become lower-case, and every byte that is neither
//! a letter nor a digit becomes a dash.

use countersign_identity::{
    bearer::TOKEN_HEADER,
    identity_headers::{REASON_SUFFIX, SUFFIXES},
};

/// The names of the identity headers, with the configured prefix.
#[derive(Debug, Clone)]
pub struct HeaderNames {
    /// The identity headers, in the order of [`SUFFIXES`].
    pub identity: [String; 7],
    /// The response header with the reason of a denial.
    pub reason: String,
    /// A bit for the length of each of these names and of the token header. Most headers have another length, so they need no comparison.
    lengths: u128,
}

impl HeaderNames {
    pub fn new(prefix: &str) -> Self {
        let with_prefix = |suffix: &str| format!("{prefix}{suffix}");
        let (identity, reason) = (SUFFIXES.map(with_prefix), with_prefix(REASON_SUFFIX));
        let lengths = identity.iter().chain([&reason]).map(String::len).chain([TOKEN_HEADER.len()]);
        let lengths = lengths.fold(0, |bits, length| bits | length_bit(length));
        Self { identity, reason, lengths }
    }

    /// Whether Envoy must remove the request header `sent`. If the response sets the identity headers (`overwritten`), their exact names
    /// must stay, because Envoy removes headers after it sets them.
    pub fn must_remove(&self, sent: &[u8], overwritten: bool) -> bool {
        if self.lengths & length_bit(sent.len()) == 0 {
            return false;
        }
        // We only remove other spellings of the token header. Whether Envoy must remove `X-Agent-Token` itself depends on the
        // check, so the caller adds this name.
        if are_equal_after_folding(sent, TOKEN_HEADER) {
            return !sent.eq_ignore_ascii_case(TOKEN_HEADER.as_bytes());
        }
        match self.identity.iter().find(|name| are_equal_after_folding(sent, name)) {
            Some(name) => !(overwritten && sent.eq_ignore_ascii_case(name.as_bytes())),
            None => are_equal_after_folding(sent, &self.reason),
        }
    }
}

/// The bit of a length. All lengths from 127 share the last bit.
fn length_bit(length: usize) -> u128 {
    1 << length.min(127)
}

pub fn are_equal_after_folding(sent: &[u8], name: &str) -> bool {
    sent.len() == name.len() && sent.iter().copied().map(fold).eq(name.bytes().map(fold))
}

const fn fold(byte: u8) -> u8 {
    if byte.is_ascii_alphanumeric() { byte.to_ascii_lowercase() } else { b'-' }
}
