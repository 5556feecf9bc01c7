//! URLs as they may be shown: without the parts that may contain a secret.

use reqwest::Url;

/// Scheme, host, port and path. User, password, query and fragment are removed, also from text that is not a URL.
pub fn redacted_url(url: &str) -> String {
    let Ok(mut parsed) = Url::parse(url) else {
        let path = url.split(['?', '#']).next().unwrap_or_default();
        return path.rsplit('@').next().unwrap_or_default().to_owned();
    };
    if parsed.set_username("").and_then(|()| parsed.set_password(None)).is_err() {
        // A URL without a host cannot have a user; what follows its scheme could be a secret.
        return format!("{}:…", parsed.scheme());
    }
    parsed.set_query(None);
    parsed.set_fragment(None);
    parsed.to_string()
}

/// The same with the port that is used, also where it is the default port of the scheme.
pub fn url_with_port(url: &Url) -> String {
    let (host, port) = (url.host_str().unwrap_or_default(), url.port_or_known_default());
    match port {
        Some(port) if url.has_host() => format!("{}://{host}:{port}{}", url.scheme(), url.path()),
        _ => redacted_url(url.as_str()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redacted_url_drops_everything_that_may_be_a_secret() {
        for (url, shown) in [
            ("https://user:s3cr3t@host:8/x/?token=s3cr3t#s3cr3t", "https://host:8/x/"),
            ("ftp://s3cr3t@host/x", "ftp://host/x"),
            ("127.0.0.1:20000/x?s3cr3t", "127.0.0.1:20000/x"),
            ("user:s3cr3t@host/x", "user:…"),
            ("//user:s3cr3t@host/x?s3cr3t", "host/x"),
            ("https://user:s3cr3t@:8/x", ":8/x"),
            ("mailto:s3cr3t", "mailto:…"),
            ("", ""),
        ] {
            assert_eq!(redacted_url(url), shown, "{url}");
        }
    }

    #[test]
    fn url_with_port_shows_the_default_port_and_no_secret() {
        for (url, shown) in [
            ("https://user:s3cr3t@host/x?s3cr3t", "https://host:443/x"),
            ("https://host:8443", "https://host:8443/"),
            ("http://[::1]/", "http://[::1]:80/"),
            ("mailto:s3cr3t", "mailto:…"),
        ] {
            assert_eq!(url_with_port(&Url::parse(url).unwrap()), shown, "{url}");
        }
    }
}
