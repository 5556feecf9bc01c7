//! Removes the parts of a URL that may be secret, so that messages can show the rest. Also recognizes secrets by their prefix.

use reqwest::Url;
use std::net::IpAddr;

/// The prefixes of API keys, secrets of webhooks, refresh tokens and JWTs.
const SECRET_PREFIXES: [&str; 4] = ["svc_sk_", "whsec_", "rf_", "eyJ"];

/// Whether text begins like a secret. Ignores leading hyphens: a user may type `--svc_sk_…` by mistake.
pub fn begins_like_secret(text: &str) -> bool {
    let text = text.trim_start_matches('-');
    SECRET_PREFIXES.iter().any(|prefix| text.starts_with(prefix))
}

/// Removes user name, password, query and fragment from a URL, and similar parts from text that is not a valid URL.
pub fn redacted_url(url: &str) -> String {
    if begins_like_secret(url) {
        return "…".to_owned();
    }
    let Ok(mut parsed) = Url::parse(url) else {
        let path = url.split(['?', '#']).next().unwrap_or_default();
        return path.rsplit('@').next().unwrap_or_default().to_owned();
    };
    if parsed.set_username("").and_then(|()| parsed.set_password(None)).is_err() {
        // A URL without a host cannot have a user name, but the text after its scheme could be a secret.
        return format!("{}:…", parsed.scheme());
    }
    parsed.set_query(None);
    parsed.set_fragment(None);
    parsed.to_string()
}

/// Like [`redacted_url`], but shows the port of every URL with a host, even the default port of the scheme.
pub fn redacted_url_with_port(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    match url.port_or_known_default() {
        Some(port) if url.has_host() => format!("{}://{host}:{port}{}", url.scheme(), url.path()),
        _ => redacted_url(url.as_str()),
    }
}

/// Whether the host is this machine.
pub fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redacted_url_removes_all_parts_that_may_be_secret() {
        for (url, redacted) in [
            ("https://user:s3cr3t@host:8/x/?token=s3cr3t#s3cr3t", "https://host:8/x/"),
            ("ftp://s3cr3t@host/x", "ftp://host/x"),
            ("127.0.0.1:20000/x?s3cr3t", "127.0.0.1:20000/x"),
            ("user:s3cr3t@host/x", "user:…"),
            ("//user:s3cr3t@host/x?s3cr3t", "host/x"),
            // No valid URL, so all text up to the last `@` is removed.
            ("https://user:s3cr3t@:8/x", ":8/x"),
            ("mailto:s3cr3t", "mailto:…"),
            ("svc_sk_s3cr3t", "…"),
            ("", ""),
        ] {
            assert_eq!(redacted_url(url), redacted, "{url}");
        }
    }

    #[test]
    fn redacted_url_with_port_adds_the_default_port_and_removes_secrets() {
        for (url, redacted) in [
            ("https://user:s3cr3t@host/x?s3cr3t", "https://host:443/x"),
            ("https://host:8443", "https://host:8443/"),
            ("http://[::1]/", "http://[::1]:80/"),
            ("mailto:s3cr3t", "mailto:…"),
        ] {
            assert_eq!(redacted_url_with_port(&Url::parse(url).unwrap()), redacted, "{url}");
        }
    }
}
