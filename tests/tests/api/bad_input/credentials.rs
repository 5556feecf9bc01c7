//! Every kind of credential in every place where one may stand: only the right ones may do anything.

use super::{
    fixture::{Fixture, assert_none, misshapen, unlisted},
    routes::{Door, ROUTES, Route},
};
use countersign_tests::{
    Environment, HttpResponse, RawRequest, Sidecar,
    sidecar::{CheckResult, request},
};
use envoy_types::pb::envoy::config::core::v3::{HeaderMap, HeaderValue};
use serde_json::{Value, json};

/// What somebody may hold, or believe to be a credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Nothing,
    FullKey,
    SyncKey,
    RevokedKey,
    OthersKey,
    ServiceId,
    AccessToken,
    RefreshToken,
    Administrator,
    Stranger,
    ExpiredHuman,
    Challenge,
    Garbage,
    RawBytes,
}

use Kind::{
    AccessToken, Administrator, Challenge, ExpiredHuman, FullKey, Garbage, Nothing, OthersKey, RawBytes, RefreshToken,
    RevokedKey, ServiceId, Stranger, SyncKey,
};

/// All of them, in the order of the columns of the table below.
pub const KINDS: [Kind; 14] = [
    Nothing,
    FullKey,
    SyncKey,
    RevokedKey,
    OthersKey,
    ServiceId,
    AccessToken,
    RefreshToken,
    Administrator,
    Stranger,
    ExpiredHuman,
    Challenge,
    Garbage,
    RawBytes,
];

/// What a door says: nothing if it lets pass, else status and reason.
type Word = Option<(u16, &'static str)>;

const OK: Word = None;
const KEY_MISSING: Word = Some((401, "service_key_missing"));
const KEY_BAD: Word = Some((401, "service_key_invalid"));
const NO_HUMAN: Word = Some((401, "human_token_missing"));
const HUMAN_BAD: Word = Some((401, "human_token_invalid"));
const EXPIRED: Word = Some((401, "human_token_expired"));
const NOT_ONE: Word = Some((401, "credentials_malformed"));
const NOT_YOURS: Word = Some((403, "not_yours"));
const NO_ADMIN: Word = Some((403, "admin_required"));
const SCOPE: Word = Some((403, "scope_insufficient"));

/// What each door says to each kind.
#[rustfmt::skip]
pub fn words(door: Door) -> [Word; 14] {
    const K: Word = KEY_BAD;
    const H: Word = HUMAN_BAD;
    const E: Word = EXPIRED;
    match door {
        //                    nothing      full sync   revoked other's    id access refresh admin stranger expired chal. garb. raw
        Door::Open =>       [OK,          OK, OK,    OK, OK,        OK, OK, OK, OK, OK,        OK, OK, OK, OK],
        Door::Registrant => [OK,          H,  H,     H,  H,         H,  H,  H,  OK, OK,        E,  H,  H,  NOT_ONE],
        Door::Verifier =>   [KEY_MISSING, OK, OK,    K,  NOT_YOURS, K,  K,  K,  K,  K,         K,  K,  K,  NOT_ONE],
        Door::AnyFullKey => [KEY_MISSING, OK, SCOPE, K,  OK,        K,  K,  K,  K,  K,         K,  K,  K,  NOT_ONE],
        Door::Manager =>    [KEY_MISSING, OK, SCOPE, K,  NOT_YOURS, K,  H,  H,  OK, NOT_YOURS, E,  H,  H,  NOT_ONE],
        Door::Owner =>      [NO_HUMAN,    H,  H,     H,  H,         H,  H,  H,  OK, NOT_YOURS, E,  H,  H,  NOT_ONE],
        Door::Person =>     [NO_HUMAN,    H,  H,     H,  H,         H,  H,  H,  OK, OK,        E,  H,  H,  NOT_ONE],
        Door::Admin =>      [NO_HUMAN,    H,  H,     H,  H,         H,  H,  H,  OK, NO_ADMIN,  E,  H,  H,  NOT_ONE],
    }
}

/// One credential of each kind, in the order of [`KINDS`].
pub struct Purse(Vec<Vec<u8>>);

impl Purse {
    pub async fn of(fixture: &Fixture) -> Self {
        let control = &fixture.control;
        let (_, others) = control.create_service(json!({ "name": "other" })).await;
        let sync = control.create_key(control.service(), "sync").await;
        let revoked = control.create_key(control.service(), "full").await;
        let path = control.path(&format!("/keys/key_{}", &revoked["svc_sk_".len()..][..26]));
        HttpResponse::send(control.api.request("DELETE", &path).bearer_auth(control.human())).await.expect(200);
        let text = |kind: Kind| match kind {
            FullKey => control.key().to_owned(),
            SyncKey => sync.clone(),
            RevokedKey => revoked.clone(),
            OthersKey => others.clone(),
            ServiceId => control.service().to_owned(),
            Administrator => control.human().to_owned(),
            Stranger => control.mint_human("stranger"),
            ExpiredHuman => control.mint_human_for("developer", 0),
            Garbage => "nonsense".to_owned(),
            Nothing | AccessToken | RefreshToken | Challenge | RawBytes => String::new(),
        };
        let mut purse: Vec<_> = KINDS.iter().map(|kind| text(*kind).into_bytes()).collect();
        let mut put = |kind, value: Vec<u8>| purse[place(kind)] = value;
        put(AccessToken, fixture.token.clone().into_bytes());
        put(RefreshToken, fixture.refresh_token().await.into_bytes());
        put(Challenge, fixture.challenge().await.id.into_bytes());
        put(RawBytes, b"svc_sk_\xff\xfe\x80".to_vec());
        Self(purse)
    }

    pub fn get(&self, kind: Kind) -> &[u8] {
        &self.0[place(kind)]
    }

    pub fn text(&self, kind: Kind) -> &str {
        std::str::from_utf8(self.get(kind)).unwrap_or("no text")
    }

    fn bearer(&self, kind: Kind) -> Vec<u8> {
        [b"Bearer ", self.get(kind)].concat()
    }
}

fn place(kind: Kind) -> usize {
    KINDS.iter().position(|other| *other == kind).unwrap()
}

/// Knocks at every door with every kind in `Authorization`.
pub async fn knock(fixture: &Fixture, purse: &Purse) -> Vec<String> {
    let mut faults = Vec::new();
    for route in ROUTES {
        for (kind, word) in KINDS.into_iter().zip(words(route.door)) {
            let body = fixture.body(route).await;
            let before = fixture.rows().await;
            let request = fixture.request(route).header("x-agent-token", purse.get(AccessToken));
            let request = if kind == Nothing { request } else { request.header("authorization", purse.bearer(kind)) };
            let request = if route.fields.is_empty() { request } else { request.json(&body) };
            let answer = HttpResponse::send(request).await;
            let unchanged = route.method == "GET" || fixture.rows().await == before || word.is_none();
            faults.extend(judge(route, kind, word, &answer, unchanged));
            faults.extend(unlisted(route, &answer));
        }
    }
    faults
}

fn judge(route: &Route, kind: Kind, word: Word, answer: &HttpResponse, unchanged: bool) -> Option<String> {
    let right = match word {
        None => route.admits(answer.status),
        Some((status, reason)) => {
            answer.status == status && answer.error().2 == reason && misshapen(answer).is_none() && unchanged
        }
    };
    let said = || format!("{} {}", answer.status, answer.body);
    (!right).then(|| format!("{} {} with {kind:?}: expected {word:?}, came {}", route.method, route.path, said()))
}

#[tokio::test]
async fn every_route_accepts_only_the_right_credentials() {
    let fixture = Fixture::new().await;
    let purse = Purse::of(&fixture).await;
    assert_none(&knock(&fixture, &purse).await);
}

#[tokio::test]
async fn repeated_credentials_are_refused_on_every_route() {
    let fixture = Fixture::new().await;
    let mut faults = Vec::new();
    for route in ROUTES {
        let body = fixture.body(route).await;
        let before = fixture.rows().await;
        let good = if route.door == Door::Registrant { fixture.control.human() } else { fixture.control.key() };
        let request = fixture.admitted(route).bearer_auth(good).bearer_auth(good);
        let answer = HttpResponse::send(if route.fields.is_empty() { request } else { request.json(&body) }).await;
        let right = if route.door == Door::Open {
            route.admits(answer.status)
        } else {
            answer.error() == (401, "AUTHENTICATION_FAILED", "credentials_malformed") && fixture.rows().await == before
        };
        faults.extend((!right).then(|| format!("{} {}: {} {}", route.method, route.path, answer.status, answer.body)));
    }
    assert_none(&faults);
}

#[tokio::test]
async fn other_credentials_are_refused_as_access_tokens() {
    let fixture = Fixture::new().await;
    let sidecar = Sidecar::start(&fixture.control).await;
    let purse = Purse::of(&fixture).await;
    let mut faults = Vec::new();
    for kind in KINDS {
        let reason = match kind {
            AccessToken => "",
            Nothing => "token_missing",
            _ => "token_malformed",
        };
        let expected = (if kind == AccessToken { 200 } else { 401 }, reason);
        let verify =
            fixture.control.api.request("GET", &fixture.control.path("/verify")).bearer_auth(fixture.control.key());
        let verify = if kind == Nothing { verify } else { verify.header("x-agent-token", purse.bearer(kind)) };
        let answer = HttpResponse::send(verify).await;
        if (answer.status, answer.error().2) != expected || (kind != AccessToken && answer.body["valid"] != false) {
            faults.push(format!("API with {kind:?}: {} {}", answer.status, answer.body));
        }
        for name in ["authorization", "x-agent-token"] {
            let mut check = request(&[], &[("allow_unassigned", "true")]);
            let raw_value = if kind == Nothing { Vec::new() } else { purse.bearer(kind) };
            let header = HeaderValue { key: name.into(), raw_value, ..HeaderValue::default() };
            let headers = if kind == Nothing { vec![] } else { vec![header] };
            let http = check.attributes.as_mut().and_then(|attributes| attributes.request.as_mut()?.http.as_mut());
            http.unwrap().header_map = Some(HeaderMap { headers });
            let verdict = CheckResult::of(sidecar.client().await.check(check).await.unwrap().into_inner());
            let said = (verdict.status, verdict.reason.as_str());
            faults.extend((said != expected).then(|| format!("{name} with {kind:?}: {said:?}")));
        }
    }
    assert_none(&faults);
}

#[tokio::test]
async fn envoy_forwards_only_requests_with_an_access_token() {
    let environment = Environment::start().await;
    let fixture = Fixture::on(environment.control).await;
    let purse = Purse::of(&fixture).await;
    let mut faults = Vec::new();
    for kind in KINDS {
        for name in ["authorization", "x-agent-token"] {
            let seen = environment.upstream.received();
            let request = RawRequest::get("/").with(name, purse.bearer(kind));
            let answer = request.send_until_checked(&environment.envoy.site).await;
            let passed = environment.upstream.received() > seen;
            let right =
                if kind == AccessToken { answer.status == 200 && passed } else { answer.status == 401 && !passed };
            faults.extend((!right).then(|| format!("{name} with {kind:?}: {} {}", answer.status, answer.body)));
        }
    }
    assert_none(&faults);
}

#[tokio::test]
async fn refresh_and_login_refuse_other_credentials() {
    let fixture = Fixture::new().await;
    let purse = Purse::of(&fixture).await;
    let mut faults = Vec::new();
    for kind in KINDS.into_iter().filter(|kind| *kind != RawBytes) {
        let text = purse.text(kind);
        let nonce_signed = fixture.agent.key.sign(text);
        let before = fixture.rows().await;
        let refreshed = fixture.control.api.post("/auth/refresh", json!({ "refreshToken": text })).await;
        let body = json!({ "challengeId": text, "signature": nonce_signed });
        let answered = fixture.control.api.post("/auth/authenticate", body).await;
        let refresh =
            if kind == RefreshToken { (200, "", "") } else { (401, "AUTHENTICATION_FAILED", "refresh_invalid") };
        let login = match kind {
            Challenge => (400, "INVALID_SIGNATURE", ""),
            _ => (401, "AUTHENTICATION_FAILED", "challenge_invalid"),
        };
        let right = (refreshed.error(), answered.error()) == (refresh, login);
        let unchanged = kind == RefreshToken || fixture.rows().await == before;
        faults.extend((!right || !unchanged).then(|| format!("{kind:?}: {} {}", refreshed.body, answered.body)));
    }
    assert_none(&faults);
}

/// The token of a person with a claim or a header member changed, signed by the real operator key.
fn persons(fixture: &Fixture) -> Vec<(String, String)> {
    let minted = fixture.control.human();
    let signer = super::signer::Signer::operator(&fixture.control, minted);
    let public = signer.public_pem();
    let claims = [
        ("exp a text", json!({ "exp": "4000000000" })),
        ("exp a float", json!({ "exp": 4e9 })),
        ("exp negative", json!({ "exp": -1 })),
        ("exp missing", json!({ "exp": null })),
        ("iat ahead", json!({ "iat": 4_000_000_000_u64 })),
        ("aud another", json!({ "aud": fixture.control.env["URL"] })),
        ("aud an array", json!({ "aud": ["urn:countersign:control-plane"] })),
        ("aud missing", json!({ "aud": null })),
        ("iss another", json!({ "iss": fixture.control.env["URL"] })),
        ("iss missing", json!({ "iss": null })),
        ("sub empty", json!({ "sub": "" })),
        ("sub a number", json!({ "sub": 1 })),
        ("sub missing", json!({ "sub": null })),
        ("admin a text", json!({ "admin": "true" })),
        ("admin missing", json!({ "admin": null })),
    ];
    let headers = [
        ("alg none", json!({ "alg": "none" })),
        ("alg HS256", json!({ "alg": "HS256" })),
        ("crit", json!({ "crit": ["exp"] })),
        ("crit of what is known", json!({ "crit": ["b64"], "b64": true })),
    ];
    let name = |name: &str| format!("a person's token, {name}");
    let mut tokens: Vec<_> = claims.iter().map(|(n, change)| (name(n), signer.with_claims(change))).collect();
    tokens.extend(headers.iter().map(|(n, change)| (name(n), signer.with_header(change))));
    tokens.push((name("HS256 keyed with the public key"), signer.hs256(public.as_bytes())));
    tokens.push((name("without signature"), format!("{}.", minted.rsplit_once('.').unwrap().0)));
    tokens
}

#[tokio::test]
async fn altered_human_tokens_are_refused() {
    let fixture = Fixture::new().await;
    let mut faults = Vec::new();
    let before = fixture.rows().await;
    for (name, token) in persons(&fixture) {
        let answer = fixture.control.api.send_as(&token, "POST", "/services", json!({ "name": "Theirs" })).await;
        let right = answer.error() == (401, "AUTHENTICATION_FAILED", "human_token_invalid");
        faults.extend((!right).then(|| format!("{name}: {} {}", answer.status, answer.body)));
    }
    assert_none(&faults);
    assert_eq!(fixture.rows().await, before);
    let signer = super::signer::Signer::operator(&fixture.control, fixture.control.human());
    let good = signer.with_claims(&Value::Object(serde_json::Map::new()));
    fixture.control.api.send_as(&good, "POST", "/services", json!({ "name": "Ours" })).await.expect(201);
}
