//! The claim that makes an administrator, in the shapes in which issuers have it.

use super::{NOT_YOURS, control_of};
use countersign_tests::{ControlPlane, Issuer, SigningKey, issuer::with};
use serde_json::{Value, json};

/// Settings, the claim that they name, and what in it makes an administrator and what does not.
type Case<'a> = (&'a [(&'a str, &'a str)], &'a str, Value, Value);

/// Looks at the keys of a service that is not theirs.
async fn manages_all(control: &ControlPlane, token: &str) -> bool {
    let answer = control.api.get_as(token, &control.path("/keys")).await;
    assert!(answer.status == 200 || answer.error() == NOT_YOURS, "{}", answer.body);
    answer.status == 200
}

#[tokio::test]
async fn admin_claim_of_the_issuer_makes_an_administrator() {
    let key = SigningKey::p256("p");
    let issuer = Issuer::start(&[&key]).await;
    let url = "https://example.org/roles";
    let cases: [Case; 6] = [
        (&[("admin_claim", "admin")], "admin", json!(true), json!("true")),
        (&[("admin_claim", "role"), ("admin_value", "boss")], "role", json!("boss"), json!("bossy")),
        (&[("admin_claim", "groups"), ("admin_value", "boss")], "groups", json!(["user", "boss"]), json!(["user"])),
        (
            &[("admin_claim", "realm_access.roles"), ("admin_value", "boss")],
            "realm_access",
            json!({ "roles": ["boss"] }),
            json!({ "groups": ["boss"] }),
        ),
        (&[("admin_claim", url), ("admin_value", "boss")], url, json!(["boss"]), json!({ "boss": true })),
        (&[("admin_claim", "scope"), ("admin_value", "boss")], "scope", json!("openid boss"), json!("openid-boss")),
    ];
    for (settings, claim, yes, no) in cases {
        let control = control_of(&issuer, settings).await;
        let token = |value: &Value| key.token(&with(issuer.claims("ann"), claim, value.clone()));
        assert!(manages_all(&control, &token(&yes)).await, "{settings:?} {yes}");
        assert!(!manages_all(&control, &token(&no)).await, "{settings:?} {no}");
        assert!(!manages_all(&control, &key.token(&issuer.claims("ann"))).await, "{settings:?}");
    }
}

#[tokio::test]
async fn issuer_without_admin_claim_setting_has_no_administrators() {
    let key = SigningKey::p256("p");
    let issuer = Issuer::start(&[&key]).await;
    let control = control_of(&issuer, &[]).await;
    assert!(!manages_all(&control, &key.token(&with(issuer.claims("ann"), "admin", json!(true)))).await);
}
