//! Tests of the parsing and validation of settings.

use super::*;
use std::path::Path;

pub(super) fn read(flags: &[(&str, &str)], dev: bool) -> Result<Config, String> {
    let flags = flags.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let config = Config::read(None, Vec::new(), flags, dev).map_err(|error| error.to_string())?;
    config.check().map(|()| config).map_err(|error| error.to_string())
}

#[test]
fn missing_tls_settings_are_rejected_with_possible_corrections() {
    let error = read(&[("public_url", "https://id.example")], false).unwrap_err();
    assert!(error.contains("tls.certificate") && error.contains("--dev"), "{error}");
}

#[test]
fn settings_files_of_the_examples_are_accepted() {
    for example in ["systemd", "compose"] {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../examples/{example}/control-plane.toml"));
        let config = Config::read(Some(file), Vec::new(), Vec::new(), false).unwrap();
        assert!(config.check().is_ok(), "{example}: {}", config.check().unwrap_err());
    }
}

#[test]
fn development_mode_requires_loopback_and_flags_override_presets() {
    let config = read(&[("listen.api", "127.0.0.1:1234")], true).unwrap();
    assert_eq!(config.listen.api.port(), 1234);
    assert_eq!(config.registration.public_agents, 1_000_000);
    assert!(read(&[("listen.api", "0.0.0.0:1234")], true).unwrap_err().contains("loopback"));
}

#[test]
fn trusted_proxies_must_be_specific_networks_or_addresses() {
    let config = read(&[("proxies.trusted", "10.0.0.0/8, 192.0.2.1,fd00::/8")], true).unwrap();
    let networks = ["10.0.0.0/8", "192.0.2.1/32", "fd00::/8"].map(|network| network.parse().unwrap());
    assert_eq!(config.proxies.networks(), networks);
    for (value, message) in [
        ("proxy.example", "neither"),
        ("10.0.0.0/33", "neither"),
        ("0.0.0.0/0", "every address"),
        ("::/0", "every address"),
    ] {
        let error = read(&[("proxies.trusted", value)], true).unwrap_err();
        assert!(error.contains("proxies.trusted") && error.contains(value) && error.contains(message), "{error}");
    }
}

#[test]
fn limits_must_be_positive_and_bounded() {
    for (key, value) in [("limits.auth_per_minute", "0"), ("limits.verification_per_minute", "1000001")] {
        let error = read(&[(key, value)], true).unwrap_err();
        assert!(error.contains("limits") && error.contains("1000000"), "{error}");
    }
    assert!(read(&[("limits.feedback_per_minute", "-1")], true).unwrap_err().contains("limits.feedback_per_minute"));
    assert!(read(&[("limits.auth_per_minute", "1"), ("limits.management_per_minute", "1000000")], true).is_ok());
}

#[test]
fn invalid_quota_is_rejected_with_its_name() {
    for (name, value) in [
        ("services_per_person", "0"),
        ("agents_per_person", "1000001"),
        ("keys_per_service", "0"),
        ("sessions_per_agent", "0"),
    ] {
        let error = read(&[(&format!("quotas.{name}"), value)], true).unwrap_err();
        assert!(error.contains(&format!("quotas.{name}: {value} must be from 1 to 1000000")), "{error}");
    }
    assert!(read(&[("quotas.keys_per_service", "1"), ("quotas.sessions_per_agent", "1000000")], true).is_ok());
    let error = read(&[("registration.public_agents", "1000001")], true).unwrap_err();
    assert!(error.contains("registration.public_agents: 1000001 must be from 0 to 1000000"), "{error}");
    assert!(read(&[("registration.public_agents", "0")], true).is_ok());
}

#[test]
fn development_mode_raises_all_limits_that_are_not_set() {
    let limits = |flags: &[(&str, &str)], dev| {
        let flags = flags.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let limits = Config::read(None, Vec::new(), flags, dev).unwrap().limits;
        let LimitSettings { auth, address, verification, management, feedback } = limits;
        [auth, address, verification, management, feedback]
    };
    assert_eq!(limits(&[], false), [10, 300, 1000, 100, 50]);
    assert_eq!(limits(&[], true), [1_000_000; 5]);
    assert_eq!(limits(&[("limits.auth_per_minute", "7")], true)[..2], [7, 1_000_000]);
}

#[test]
fn terminated_tls_requires_trusted_proxies() {
    let error = read(&[("tls.mode", "terminated")], true).unwrap_err();
    assert!(error.contains("proxies.trusted") && error.contains("tls.mode"), "{error}");
    assert!(read(&[("tls.mode", "terminated"), ("proxies.trusted", "127.0.0.1")], true).is_ok());
    assert!(read(&[("tls.mode", "off")], true).unwrap_err().contains("terminated"));
}

#[test]
fn rotation_age_is_in_days_and_zero_disables_rotation() {
    let rotation_age =
        |days: &str| read(&[("signing_keys.rotation_days", days)], true).map(|config| config.rotation_age());
    assert_eq!(read(&[], true).unwrap().rotation_age(), Some(Duration::from_hours(24 * 90)));
    assert_eq!((rotation_age("0"), rotation_age("1")), (Ok(None), Ok(Some(Duration::from_hours(24)))));
    assert!(rotation_age("-1").unwrap_err().contains("signing_keys.rotation_days"));
}

#[test]
fn max_staleness_defaults_to_the_access_token_lifetime() {
    let config = read(&[("tokens.access_seconds", "7")], true).unwrap();
    assert_eq!(config.max_staleness(), Duration::from_secs(7));
}

#[test]
fn connections_must_be_positive_and_bounded() {
    for value in ["0", "1000001"] {
        let error = read(&[("connections.max", value)], true).unwrap_err();
        assert!(error.contains(&format!("connections.max: {value} must be from 1 to 1000000")), "{error}");
    }
}

/// Reads the settings of an issuer: those that are required, and one more.
fn read_issuer(key: &str, value: &str) -> Result<IssuerSettings, String> {
    let key = format!("humans.issuers.corp.{key}");
    let required =
        [("humans.issuers.corp.issuer", "https://login.example"), ("humans.issuers.corp.audience", "countersign")];
    read(&[&required[..], &[(&key, value)]].concat(), true).map(|config| config.humans.issuers["corp"].clone())
}

#[test]
fn source_of_issuer_keys_is_a_url_or_a_file() {
    let jwks = |value: &str| read_issuer("jwks", value).map(|issuer| issuer.jwks);
    assert_eq!(jwks(""), Ok(KeySource::Discovery));
    assert_eq!(jwks("https://login.example/keys"), Ok(KeySource::Url("https://login.example/keys".into())));
    assert_eq!(jwks("http://127.0.0.1:1/keys"), Ok(KeySource::Url("http://127.0.0.1:1/keys".into())));
    assert_eq!(jwks("/etc/keys.json"), Ok(KeySource::File("/etc/keys.json".into())));
    for value in ["http://login.example/keys", "ftp://login.example/keys", "https://user@login.example/"] {
        assert!(jwks(value).unwrap_err().contains("humans.issuers.corp.jwks: must be an https:// URL"), "{value}");
    }
    let error = jwks("{\"keys\":[]}").unwrap_err();
    assert!(error.contains("humans.issuers.corp.jwks: is the content of a JWK set"), "{error}");
}

#[test]
fn claim_of_administrators_has_an_optional_value() {
    let claim = |text: &str| {
        let issuer = read_issuer("admin_claim", text)?;
        Ok::<_, String>(issuer.admin_claim().map(|(name, value)| (name.to_owned(), value.to_owned())))
    };
    let pair = |name: &str, value: &str| Ok(Some((name.to_owned(), value.to_owned())));
    assert_eq!(claim(""), Ok(None));
    assert_eq!(claim("is_admin"), pair("is_admin", ""));
    assert_eq!(claim("realm_access.roles=boss"), pair("realm_access.roles", "boss"));
    assert_eq!(claim("groups=cn=admins,dc=example"), pair("groups", "cn=admins,dc=example"));
    assert!(claim("=boss").unwrap_err().contains("humans.issuers.corp.admin_claim: must be the name of a claim"));
}
