//! A URL as it may be repeated: without what may be a secret in it.

use reqwest::Url;

/// Scheme, host, port and path. User, password, query and fragment are left out, also of what is no URL.
pub fn place(url: &str) -> String {
    let Ok(mut parsed) = Url::parse(url) else {
        let path = url.split(['?', '#']).next().unwrap_or_default();
        return path.rsplit('@').next().unwrap_or_default().to_owned();
    };
    if parsed.set_username("").and_then(|()| parsed.set_password(None)).is_err() {
        // Without a host there is nowhere for a user to stand; what follows the scheme could be anything.
        return format!("{}:…", parsed.scheme());
    }
    parsed.set_query(None);
    parsed.set_fragment(None);
    parsed.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_url_only_what_is_no_secret_is_repeated() {
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
            assert_eq!(place(url), shown, "{url}");
        }
    }
}
