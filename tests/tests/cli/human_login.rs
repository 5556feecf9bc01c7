//! `countersign login`, `whoami` and `logout` of human users, with a real control plane and an issuer in the test.

use crate::mode;
use countersign_tests::{ControlPlane, Issuer, Shell, SigningKey, command_line::parts, issuer::AUDIENCE};
use serde_json::{Value, json};
use std::fs;

/// The beginning of every secret that the issuer issues, except its JWTs.
pub const SECRET: &str = "s3cr3t";

/// An issuer with the device authorization grant, a control plane that trusts it, and an empty home folder.
pub struct Fixture {
    pub issuer: Issuer,
    pub control: ControlPlane,
    pub shell: Shell,
}

impl Fixture {
    pub async fn start() -> Self {
        let key = SigningKey::p256("k1");
        let issuer = Issuer::start(&[&key]).await;
        issuer.enable_device_grant(key);
        Self::start_with(issuer, &[]).await
    }

    /// Starts a control plane that trusts the issuer, with further settings of the issuer.
    async fn start_with(issuer: Issuer, issuer_settings: &[(&str, &str)]) -> Self {
        let settings = issuer.settings("corp", &[issuer_settings, &[("admin_claim", "admin")]].concat());
        let settings: Vec<_> = settings.iter().map(String::as_str).collect();
        let control = ControlPlane::start_process_with(&settings).await;
        let shell = Shell::with_env(&control, &["URL", "CA"]);
        Self { issuer, control, shell }
    }

    /// The arguments of a login with this issuer, and further arguments.
    pub fn login_with<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        [&["login", "--issuer", &self.issuer.url, "--client-id", AUDIENCE], more].concat()
    }

    /// Starts the servers and logs in.
    pub async fn logged_in() -> Self {
        let fixture = Self::start().await;
        fixture.shell.stdout(&fixture.login_with(&[]));
        fixture
    }

    /// The stored login.
    pub fn stored(&self) -> Value {
        serde_json::from_slice(&fs::read(self.shell.profile_path("default.human.json")).unwrap()).unwrap()
    }

    /// Replaces the stored token by one that expires after `lifetime` seconds.
    pub fn replace_stored_token(&self, lifetime: i64) {
        let mut stored = self.stored();
        stored["token"] = json!(self.issuer.device_grant(|grant| grant.token(&self.issuer.url, AUDIENCE, lifetime)));
        fs::write(self.shell.profile_path("default.human.json"), stored.to_string()).unwrap();
    }

    pub fn is_stored(&self) -> bool {
        self.shell.profile_path("default.human.json").exists()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn login_replaces_the_token_in_the_environment() {
    let mut fixture = Fixture::start().await;
    fixture.shell.assert_fails(2, &["service", "create", "Shop"], &["countersign login", "COUNTERSIGN_HUMAN_TOKEN"]);
    let (code, printed, shown) = parts(&fixture.shell.run(&fixture.login_with(&["-v"])));
    assert_eq!(code, 0, "{shown}");
    assert!(printed.contains("ann@example.org (ann)") && printed.contains(&fixture.issuer.url), "{printed}");
    for text in [format!("{}/verify", fixture.issuer.url), "the code WDJB-MJHT".into(), "?user_code=WDJB-MJHT".into()] {
        assert!(shown.contains(&text), "{text}: {shown}");
    }
    let requested = &fixture.issuer.forms("/device")[0];
    assert!(requested["client_id"] == AUDIENCE && requested["scope"] == "openid email offline_access", "{requested:?}");

    // The profile names the control plane from now on.
    fixture.shell.unset("COUNTERSIGN_URL");
    fixture.shell.unset("COUNTERSIGN_CA");
    let service = fixture.shell.stdout(&["service", "create", "Shop"]);
    assert_eq!(fixture.shell.json(&["service", "list"])[0]["serviceId"], service);
    fixture.shell.stdout(&["role", "create", "reader"]);
    let agent = fixture.shell.register_agent();
    fixture.shell.stdout(&["agent", "suspend", &agent]);
    assert!(fixture.issuer.refreshes().is_empty(), "a valid token is not refreshed");

    let stored = fixture.stored();
    for secret in [SECRET, stored["token"].as_str().unwrap()] {
        assert!(!printed.contains(secret) && !shown.contains(secret), "{secret} is shown: {printed}{shown}");
    }
    assert_eq!(mode(fixture.shell.profile_path("")), 0o700);
    for name in ["default.toml", "default.human.json", "default.human.lock"] {
        assert_eq!(mode(fixture.shell.profile_path(name)), 0o600, "{name}");
    }
    assert!(!fs::read_to_string(fixture.shell.profile_path("default.toml")).unwrap().contains(SECRET));
    fixture.shell.export("COUNTERSIGN_HUMAN_TOKEN", &fixture.control.mint_human("other"));
    assert_eq!(fixture.shell.json(&["service", "list"]), json!([]), "the variable overrides the login");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn login_remembers_its_options_and_flags_override_variables() {
    let mut fixture = Fixture::start().await;
    for missing in [&["login"][..], &["login", "--issuer", &fixture.issuer.url]] {
        fixture.shell.assert_fails(2, missing, &["is not set\n"]);
    }
    fixture.shell.export("COUNTERSIGN_ISSUER", &fixture.issuer.url);
    fixture.shell.export("COUNTERSIGN_CLIENT_ID", "from-the-variable");
    let audience = ["--scope", "openid custom", "--audience", "https://api.example.org"];
    fixture.shell.stdout(&[&["login", "--client-id", AUDIENCE][..], &audience].concat());
    fixture.shell.unset("COUNTERSIGN_ISSUER");
    fixture.shell.unset("COUNTERSIGN_CLIENT_ID");
    assert!(fixture.shell.json(&["logout"])["deleted"] == true, "logout keeps the options");
    fixture.shell.stdout(&["login"]);
    let forms = fixture.issuer.forms("/device");
    assert_eq!(forms.len(), 2);
    for form in &forms {
        let fields = ["client_id", "scope", "audience"].map(|name| form[name].as_str());
        assert_eq!(fields, [AUDIENCE, "openid custom", "https://api.example.org"]);
    }
    // A login at another issuer does not use the options of the login at the first issuer.
    fixture.shell.assert_fails(2, &["login", "--issuer", "https://127.0.0.1:1"], &["the client id is not set"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn login_sends_the_access_token_if_requested() {
    let fixture = Fixture::start().await;
    let access_token = ["login", "--issuer", &fixture.issuer.url, "--client-id", "cli", "--use", "access-token"];
    fixture.shell.assert_fails(1, &access_token, &["`access_token`", "--use id-token"]);
    fixture.issuer.device_grant(|grant| grant.access_token_audience = Some(AUDIENCE));
    fixture.shell.stdout(&access_token);
    assert_eq!(fixture.shell.json(&["service", "list"]), json!([]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn login_trusts_the_given_authority_of_the_issuer() {
    let key = SigningKey::p256("k1");
    let (issuer, certificate) = Issuer::start_tls(&[&key]).await;
    issuer.enable_device_grant(key);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("issuer.pem").display().to_string();
    fs::write(&file, certificate).unwrap();
    let fixture = Fixture::start_with(issuer, &[("ca_file", &file)]).await;
    fixture.shell.assert_fails(4, &fixture.login_with(&[]), &["--issuer-ca FILE"]);
    let absent = fixture.login_with(&["--issuer-ca", "/nowhere"]);
    fixture.shell.assert_fails(1, &absent, &["--issuer-ca (COUNTERSIGN_ISSUER_CA) /nowhere: "]);
    fixture.issuer.device_grant(|grant| grant.lifetimes = [30, 3600].into());
    fixture.shell.stdout(&fixture.login_with(&["--issuer-ca", &file]));
    fixture.shell.stdout(&["service", "list"]);
    assert_eq!(fixture.issuer.refreshes().len(), 1, "the refresh uses the authority of the login");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn login_prints_json_and_ignores_quiet_and_the_proxy_for_loopback_addresses() {
    let mut fixture = Fixture::start().await;
    fixture.shell.export("http_proxy", "http://127.0.0.1:1");
    let output = fixture.shell.run(&fixture.login_with(&["-o", "json", "--quiet"]));
    let instruction: Value = serde_json::from_slice(&output.stderr).unwrap();
    let page = format!("{}/verify", fixture.issuer.url);
    let expected = json!({
        "verificationUri": page,
        "verificationUriComplete": format!("{page}?user_code=WDJB-MJHT"),
        "userCode": "WDJB-MJHT",
        "expiresInSeconds": 600,
    });
    assert_eq!(instruction["login"], expected);
    let login: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&login["subject"], &login["refreshable"]), (&json!("ann"), &json!(true)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoami_shows_user_agent_and_key() {
    let mut fixture = Fixture::start().await;
    fixture.shell.assert_fails(2, &["whoami"], &["countersign login", "COUNTERSIGN_HUMAN_TOKEN"]);
    fixture.shell.stdout(&fixture.login_with(&[]));
    let user = fixture.shell.json(&["whoami"]);
    assert_eq!((&user["agent"], &user["serviceKey"]), (&Value::Null, &Value::Null));
    let human = &user["human"];
    assert_eq!((&human["source"], &human["subject"]), (&json!("login"), &json!("ann")));
    assert_eq!((&human["issuer"], &human["email"]), (&json!(fixture.issuer.url), &json!("ann@example.org")));
    assert_eq!((&human["administrator"], &human["refreshable"]), (&json!(false), &json!(true)));

    fixture.issuer.device_grant(|grant| grant.claims = json!({ "admin": true, "name": "Ann Example" }));
    fixture.shell.stdout(&["login"]);
    let agent = fixture.shell.register_agent();
    fixture.shell.export("COUNTERSIGN_SERVICE_KEY", fixture.control.key());
    fixture.shell.export("COUNTERSIGN_SERVICE_ID", fixture.control.service());
    let all = fixture.shell.json(&["whoami"]);
    assert_eq!((&all["human"]["administrator"], &all["human"]["name"]), (&json!(true), &json!("Ann Example")));
    assert_eq!(all["agent"]["agentId"], agent);
    assert_eq!(all["serviceKey"]["serviceId"], fixture.control.service());
    let text = fixture.shell.stdout(&["whoami"]);
    for shown in ["ann", "Ann Example", &agent, "yes, according to the control plane", fixture.control.service()] {
        assert!(text.contains(shown), "{shown}: {text}");
    }
    let token = fixture.stored()["token"].as_str().unwrap().to_owned();
    for secret in [SECRET, &token, fixture.control.key()] {
        assert!(!text.contains(secret) && !all.to_string().contains(secret), "{text}");
    }
    fixture.shell.export("COUNTERSIGN_SERVICE_ID", "svc_00000000000000000000000000");
    let other = fixture.shell.json(&["whoami"]);
    assert_eq!(other["serviceKey"]["serviceId"], fixture.control.service(), "the control plane names the service");
    fixture.shell.export("COUNTERSIGN_HUMAN_TOKEN", fixture.control.human());
    let shown = fixture.shell.run(&["-o", "json", "whoami"]).stdout;
    assert_eq!(serde_json::from_slice::<Value>(&shown).unwrap()["human"]["source"], "token");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoami_shows_the_claims_without_the_control_plane() {
    let mut fixture = Fixture::logged_in().await;
    fixture.control.kill();
    let (code, user, _) = parts(&fixture.shell.run(&["-o", "json", "whoami"]));
    assert_eq!(code, 4);
    let user: Value = serde_json::from_str(&user).unwrap();
    assert_eq!((&user["human"]["subject"], &user["human"]["administrator"]), (&json!("ann"), &Value::Null));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logout_deletes_the_login_and_revokes_the_refresh_token() {
    let fixture = Fixture::logged_in().await;
    let refresh_token = fixture.stored()["refresh_token"].as_str().unwrap().to_owned();
    assert_eq!(fixture.shell.json(&["logout"]), json!({ "deleted": true, "refreshTokenRevoked": true }));
    assert_eq!(fixture.issuer.forms("/revoke")[0]["token"], refresh_token);
    assert!(!fixture.is_stored());
    fixture.shell.assert_fails(2, &["service", "list"], &["countersign login", "COUNTERSIGN_HUMAN_TOKEN"]);
    assert_eq!(fixture.shell.json(&["logout"]), json!({ "deleted": false, "refreshTokenRevoked": false }));

    fixture.shell.stdout(&["login"]);
    fixture.issuer.device_grant(|grant| grant.revocation_fails = true);
    let error = fixture.shell.assert_fails(1, &["logout"], &["is deleted, but its refresh token is not revoked"]);
    assert!(!fixture.is_stored() && !error.contains(SECRET), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_checks_the_login_and_does_not_refresh_it() {
    let fixture = Fixture::logged_in().await;
    let check = || {
        let checks = fixture.shell.json(&["doctor"]);
        checks.as_array().unwrap().iter().find(|check| check["check"] == "human token").unwrap().clone()
    };
    assert_eq!((&check()["status"], &check()["message"]), (&json!("ok"), &json!("valid")));
    fixture.replace_stored_token(-1);
    assert!(check()["status"] == "ok" && check()["message"].as_str().unwrap().contains("refreshes it"), "{}", check());
    assert!(fixture.issuer.refreshes().is_empty());
}
