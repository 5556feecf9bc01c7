//! The claim that makes a human user an administrator, in the formats that issuers use.

use super::{NOT_YOURS, start_with_issuer};
use countersign_tests::{ControlPlane, Issuer, SigningKey, issuer::with};
use serde_json::{Value, json};

/// Settings, the claim that they configure, a value that makes the human user an administrator, and one that does not.
type Case<'a> = (&'a [(&'a str, &'a str)], &'a str, Value, Value);

/// Whether the human user may list the keys of a service of another owner, as only administrators may.
async fn is_administrator(control: &ControlPlane, token: &str) -> bool {
    let response = control.api.get_as(token, &control.path("/keys")).await;
    assert!(response.status == 200 || response.error() == NOT_YOURS, "{}", response.body);
    response.status == 200
}

#[tokio::test]
async fn admin_claim_of_the_issuer_makes_an_administrator() {
    let key = SigningKey::p256("p");
    let issuer = Issuer::start(&[&key]).await;
    let url = "https://example.org/roles";
    let url_with_value = format!("{url}=boss");
    let cases: [Case; 6] = [
        (&[("admin_claim", "admin")], "admin", json!(true), json!("true")),
        (&[("admin_claim", "role=boss")], "role", json!("boss"), json!("bossy")),
        (&[("admin_claim", "groups=boss")], "groups", json!(["user", "boss"]), json!(["user"])),
        (
            &[("admin_claim", "realm_access.roles=boss")],
            "realm_access",
            json!({ "roles": ["boss"] }),
            json!({ "groups": ["boss"] }),
        ),
        (&[("admin_claim", &url_with_value)], url, json!(["boss"]), json!({ "boss": true })),
        (&[("admin_claim", "scope=boss")], "scope", json!("openid boss"), json!("openid-boss")),
    ];
    for (settings, claim, admin_value, other_value) in cases {
        let control = start_with_issuer(&issuer, settings).await;
        let token = |value: &Value| key.token(&with(issuer.claims("ann"), claim, value.clone()));
        assert!(is_administrator(&control, &token(&admin_value)).await, "{settings:?} {admin_value}");
        assert!(!is_administrator(&control, &token(&other_value)).await, "{settings:?} {other_value}");
        assert!(!is_administrator(&control, &key.token(&issuer.claims("ann"))).await, "{settings:?}");
    }
}

#[tokio::test]
async fn issuer_without_admin_claim_setting_has_no_administrators() {
    let key = SigningKey::p256("p");
    let issuer = Issuer::start(&[&key]).await;
    let control = start_with_issuer(&issuer, &[]).await;
    assert!(!is_administrator(&control, &key.token(&with(issuer.claims("ann"), "admin", json!(true)))).await);
}
