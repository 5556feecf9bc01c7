//! Tests of the parsing and validation of settings.

use super::*;

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
fn development_mode_requires_loopback_and_flags_override_presets() {
    let config = read(&[("listen.api", "127.0.0.1:1234")], true).unwrap();
    assert_eq!(config.listen.api.port(), 1234);
    assert!(config.registration.public);
    assert!(read(&[("listen.api", "0.0.0.0:1234")], true).unwrap_err().contains("loopback"));
}

#[test]
fn challenge_lifetime_must_not_exceed_session_lifetime() {
    let error = read(&[("tokens.challenge_seconds", "11"), ("tokens.refresh_seconds", "10")], true).unwrap_err();
    assert!(error.contains("tokens.challenge_seconds"), "{error}");
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
        ("public_agents", "0"),
        ("keys_per_service", "0"),
        ("webhooks_per_service", "0"),
        ("sessions_per_agent", "0"),
        ("audiences_per_agent", "0"),
    ] {
        let error = read(&[(&format!("quotas.{name}"), value)], true).unwrap_err();
        assert!(error.contains(&format!("quotas.{name}: {value} must be from 1 to 1000000")), "{error}");
    }
    assert!(read(&[("quotas.keys_per_service", "1"), ("quotas.public_agents", "1000000")], true).is_ok());
}

#[test]
fn development_mode_raises_all_limits_that_are_not_set() {
    let limits = |flags: &[(&str, &str)], dev| {
        let flags = flags.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let limits = Config::read(None, Vec::new(), flags, dev).unwrap().limits;
        let LimitSettings {
            auth,
            auth_address,
            verification,
            management,
            feedback,
            failures,
            agent,
            verification_owner,
            management_owner,
            feedback_owner,
        } = limits;
        let owner = [verification_owner, management_owner, feedback_owner];
        ([auth, auth_address, verification, management, feedback, failures, agent], owner)
    };
    assert_eq!(limits(&[], false), ([10, 300, 1000, 100, 50, 300, 120], [20_000, 500, 250]));
    assert_eq!(limits(&[], true), ([1_000_000; 7], [1_000_000; 3]));
    assert_eq!(limits(&[("limits.auth_per_minute", "7")], true).0[..2], [7, 1_000_000]);
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
