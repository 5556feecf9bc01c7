//! `public_url`: the issuer of every token.

use url::Url;

const FIX: &str = "set it to the https:// URL under which agents reach the API; it is the issuer of every token";

/// Describes the problem of `public_url`; `None` if it is valid. With --dev, it may be empty or begin with `http://`.
pub(super) fn problem(text: &str, dev: bool) -> Option<String> {
    if text.is_empty() {
        return (!dev).then(|| format!("no public_url: {FIX}"));
    }
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://").filter(|_| dev));
    let Some(rest) = rest else { return Some(describe(text, "does not begin with `https://`")) };
    let has_no_host = rest.is_empty() || rest.starts_with(['/', '?', '#', ':']);
    let url = Url::parse(text).ok().filter(|_| !text.contains(char::is_whitespace));
    let reason = match url {
        _ if has_no_host => "has no host",
        None => "is not a valid URL",
        Some(_) if rest.split(['/', '?', '#']).next().is_some_and(|authority| authority.contains('@')) => {
            return Some(format!("public_url: contains a user or a password: leave both out; {FIX}"));
        }
        Some(_) if text.contains(['?', '#']) => "has a query or a fragment, which an issuer must not have",
        Some(_) => return None,
    };
    Some(describe(text, reason))
}

fn describe(text: &str, reason: &str) -> String {
    // A text that is no URL can contain a password too.
    let value = if text.contains('@') { String::new() } else { format!("`{}` ", text.escape_debug()) };
    format!("public_url: {value}{reason}: {FIX}")
}
