//! Tests that each route accepts only the documented kinds of credentials.

use super::{
    fixture::{Failures, Fixture, malformed_error, undocumented_error},
    routes::{Access, ROUTES, Route},
};
use countersign_tests::HttpResponse;
use serde_json::{Value, json};

/// Defines [`CredentialKind`] and [`CREDENTIAL_KINDS`].
macro_rules! credential_kinds {
    ($($kind:ident),+ $(,)?) => {
        /// Kinds of credentials, and values that are not credentials.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum CredentialKind {
            $($kind),+
        }

        use CredentialKind::{$($kind),+};

        /// All kinds of credentials, in the order of the columns in `expected_results`.
        pub const CREDENTIAL_KINDS: [CredentialKind; 14] = [$($kind),+];
    };
}

credential_kinds! {
    NoCredential,
    FullKey,
    SyncKey,
    RevokedKey,
    OtherServiceKey,
    ServiceId,
    AccessToken,
    RefreshToken,
    Administrator,
    OtherUser,
    ExpiredHuman,
    Challenge,
    Garbage,
    RawBytes,
}

/// The expected error as status and reason; `None` if the credential is accepted.
type Expected = Option<(u16, &'static str)>;

const OK: Expected = None;
const KEY_MISSING: Expected = Some((401, "service_key_missing"));
const KEY_INVALID: Expected = Some((401, "service_key_invalid"));
const HUMAN_MISSING: Expected = Some((401, "human_token_missing"));
const HUMAN_INVALID: Expected = Some((401, "human_token_invalid"));
const EXPIRED: Expected = Some((401, "human_token_expired"));
const MALFORMED: Expected = Some((401, "credentials_malformed"));
const NOT_YOURS: Expected = Some((403, "not_yours"));
const ADMIN_REQUIRED: Expected = Some((403, "admin_required"));
const SCOPE: Expected = Some((403, "scope_insufficient"));

/// The expected result of each kind of access for each kind of credential.
#[rustfmt::skip]
pub fn expected_results(access: Access) -> [Expected; 14] {
    const K: Expected = KEY_INVALID;
    const H: Expected = HUMAN_INVALID;
    const E: Expected = EXPIRED;
    match access {
        //                        none           full sync   revoked other's    id  access refresh admin other           expired chal. garb. raw
        Access::Public =>        [OK,            OK,  OK,    OK,     OK,        OK, OK,    OK,     OK,   OK,             OK,     OK,   OK,   OK],
        Access::PublicOrHuman => [OK,            H,   H,     H,      H,         H,  H,     H,      OK,   OK,             E,      H,    H,    MALFORMED],
        Access::Verifier =>      [KEY_MISSING,   OK,  OK,    K,      NOT_YOURS, K,  K,     K,      K,    K,              K,      K,    K,    MALFORMED],
        Access::AnyFullKey =>    [KEY_MISSING,   OK,  SCOPE, K,      OK,        K,  K,     K,      K,    K,              K,      K,    K,    MALFORMED],
        Access::Manager =>       [KEY_MISSING,   OK,  SCOPE, K,      NOT_YOURS, K,  H,     H,      OK,   NOT_YOURS,      E,      H,    H,    MALFORMED],
        Access::Owner | Access::Receiver => [HUMAN_MISSING, H, H, H,    H,         H,  H,     H,      OK,   NOT_YOURS,      E,      H,    H,    MALFORMED],
        Access::HumanUser =>     [HUMAN_MISSING, H,   H,     H,      H,         H,  H,     H,      OK,   OK,             E,      H,    H,    MALFORMED],
        Access::Admin =>         [HUMAN_MISSING, H,   H,     H,      H,         H,  H,     H,      OK,   ADMIN_REQUIRED, E,      H,    H,    MALFORMED],
    }
}

/// A credential of each kind, in the order of [`CREDENTIAL_KINDS`].
pub struct Credentials(Vec<Vec<u8>>);

impl Credentials {
    pub async fn create(fixture: &Fixture) -> Self {
        let control = &fixture.control;
        let (_, other_key) = control.create_service(json!({ "name": "other" })).await;
        let sync = control.create_key(control.service(), "sync").await;
        let revoked = control.create_key(control.service(), "full").await;
        let path = control.path(&format!("/keys/key_{}", &revoked["svc_sk_".len()..][..26]));
        control.api.delete_as(control.human(), &path).await.expect(200);
        let text = |kind: CredentialKind| match kind {
            FullKey => control.key().to_owned(),
            SyncKey => sync.clone(),
            RevokedKey => revoked.clone(),
            OtherServiceKey => other_key.clone(),
            ServiceId => control.service().to_owned(),
            Administrator => control.human().to_owned(),
            OtherUser => control.mint_human("stranger"),
            ExpiredHuman => control.mint_human_for("developer", 0),
            Garbage => "nonsense".to_owned(),
            NoCredential | AccessToken | RefreshToken | Challenge | RawBytes => String::new(),
        };
        let mut credentials: Vec<_> = CREDENTIAL_KINDS.iter().map(|kind| text(*kind).into_bytes()).collect();
        let mut set = |kind, value: Vec<u8>| credentials[index_of(kind)] = value;
        set(AccessToken, fixture.token.clone().into_bytes());
        set(RefreshToken, fixture.refresh_token().await.into_bytes());
        set(Challenge, fixture.challenge().await.id.into_bytes());
        set(RawBytes, b"svc_sk_\xff\xfe\x80".to_vec());
        Self(credentials)
    }

    pub fn get(&self, kind: CredentialKind) -> &[u8] {
        &self.0[index_of(kind)]
    }

    pub fn text(&self, kind: CredentialKind) -> &str {
        std::str::from_utf8(self.get(kind)).unwrap_or("not UTF-8")
    }

    fn bearer(&self, kind: CredentialKind) -> Vec<u8> {
        [b"Bearer ", self.get(kind)].concat()
    }
}

fn index_of(kind: CredentialKind) -> usize {
    CREDENTIAL_KINDS.iter().position(|other| *other == kind).unwrap()
}

/// Sends every kind of credential in `Authorization` to every route. Returns the unexpected results.
pub async fn check_access(fixture: &Fixture, credentials: &Credentials) -> Failures {
    let mut failures = Failures::default();
    for route in ROUTES {
        for (kind, expected) in CREDENTIAL_KINDS.into_iter().zip(expected_results(route.access)) {
            let is_checked = route.method != "GET" && expected.is_some();
            let (mut response, mut rows) = send_with(fixture, credentials, route, kind, is_checked).await;
            // On a busy machine, one replica may deliver an event again that another one has delivered, and change the row of the
            // delivery. Send the request once more: if the request changes the row, the row changes again.
            if rows.iter().all(|row| row.starts_with("webhook_deliveries ")) && !rows.is_empty() {
                (response, rows) = send_with(fixture, credentials, route, kind, is_checked).await;
            }
            let case = format!("{route} with {kind:?}");
            failures.add_changed(&case, &rows);
            failures.check(is_expected(route, expected, &response), || {
                format!("{case}: expected {expected:?}, got {} {}", response.status, response.body)
            });
            failures.add(route, undocumented_error(route, &response));
        }
    }
    failures
}

/// Sends a request with a kind of credential. Returns the response and, if `is_checked`, the rows that have changed.
async fn send_with(
    fixture: &Fixture,
    credentials: &Credentials,
    route: &Route,
    kind: CredentialKind,
    is_checked: bool,
) -> (HttpResponse, Vec<String>) {
    let body = fixture.body(route).await;
    let before = fixture.rows().await;
    let request = fixture.request(route).header("x-agent-token", credentials.get(AccessToken));
    let request =
        if kind == NoCredential { request } else { request.header("authorization", credentials.bearer(kind)) };
    let response = HttpResponse::send(route.with_body(request, &body)).await;
    let after = if is_checked { fixture.rows().await } else { before.clone() };
    (response, after.symmetric_difference(&before).cloned().collect())
}

fn is_expected(route: &Route, expected: Expected, response: &HttpResponse) -> bool {
    match expected {
        None => route.accepts(response.status),
        Some(refusal) => response.reason() == refusal && malformed_error(response).is_none(),
    }
}

#[tokio::test]
async fn every_route_accepts_only_the_right_credentials() {
    let fixture = Fixture::new().await;
    let credentials = Credentials::create(&fixture).await;
    check_access(&fixture, &credentials).await.assert_none();
}

#[tokio::test]
async fn repeated_credentials_are_refused_on_every_route() {
    let fixture = Fixture::new().await;
    let mut failures = Failures::default();
    for route in ROUTES {
        let body = fixture.body(route).await;
        let before = fixture.rows().await;
        let valid_credential =
            if route.access == Access::PublicOrHuman { fixture.control.human() } else { fixture.control.key() };
        let request = fixture.authorized(route).bearer_auth(valid_credential).bearer_auth(valid_credential);
        let response = HttpResponse::send(route.with_body(request, &body)).await;
        let is_expected = if route.access == Access::Public {
            route.accepts(response.status)
        } else {
            response.error() == (401, "AUTHENTICATION_FAILED", "credentials_malformed")
                && fixture.rows().await == before
        };
        failures.check(is_expected, || format!("{route}: {} {}", response.status, response.body));
    }
    failures.assert_none();
}

/// Human tokens that the real operator key signs, each with one claim or header member changed.
fn altered_human_tokens(fixture: &Fixture) -> Vec<(String, String)> {
    let minted = fixture.control.human();
    let signer = super::signer::Signer::with_operator_key(&fixture.control, minted);
    let public = signer.public_pem();
    let claims = [
        ("exp as a string", json!({ "exp": "4000000000" })),
        ("exp as a float", json!({ "exp": 4e9 })),
        ("negative exp", json!({ "exp": -1 })),
        ("exp missing", json!({ "exp": null })),
        ("iat in the future", json!({ "iat": 4_000_000_000_u64 })),
        ("another aud", json!({ "aud": fixture.control.env["URL"] })),
        ("aud in an array", json!({ "aud": ["urn:countersign:control-plane"] })),
        ("aud missing", json!({ "aud": null })),
        ("another iss", json!({ "iss": fixture.control.env["URL"] })),
        ("iss missing", json!({ "iss": null })),
        ("empty sub", json!({ "sub": "" })),
        ("sub as a number", json!({ "sub": 1 })),
        ("sub missing", json!({ "sub": null })),
        ("admin as a string", json!({ "admin": "true" })),
        ("admin missing", json!({ "admin": null })),
    ];
    let headers = [
        ("alg none", json!({ "alg": "none" })),
        ("alg HS256", json!({ "alg": "HS256" })),
        ("crit", json!({ "crit": ["exp"] })),
        ("crit with b64", json!({ "crit": ["b64"], "b64": true })),
    ];
    let name = |name: &str| format!("a human token, {name}");
    let mut tokens: Vec<_> = claims.iter().map(|(n, change)| (name(n), signer.with_claims(change))).collect();
    tokens.extend(headers.iter().map(|(n, change)| (name(n), signer.with_header(change))));
    tokens.push((name("HS256 keyed with the public key"), signer.hs256(public.as_bytes())));
    tokens.push((name("without signature"), format!("{}.", minted.rsplit_once('.').unwrap().0)));
    tokens
}

#[tokio::test]
async fn altered_human_tokens_are_refused() {
    let fixture = Fixture::new().await;
    let mut failures = Failures::default();
    let before = fixture.rows().await;
    for (name, token) in altered_human_tokens(&fixture) {
        let response = fixture.control.api.send_as(&token, "POST", "/services", json!({ "name": "Theirs" })).await;
        let is_expected = response.error() == (401, "AUTHENTICATION_FAILED", "human_token_invalid");
        failures.check(is_expected, || format!("{name}: {} {}", response.status, response.body));
    }
    failures.assert_none();
    assert_eq!(fixture.rows().await, before);
    let signer = super::signer::Signer::with_operator_key(&fixture.control, fixture.control.human());
    let valid_credential = signer.with_claims(&Value::Object(serde_json::Map::new()));
    fixture.control.api.send_as(&valid_credential, "POST", "/services", json!({ "name": "Ours" })).await.expect(201);
}
