//! Clients without code of this project log in and verify tokens: OpenSSL, Python and Node.

use countersign_tests::{ControlPlane, openssl, tools};
use serde_json::{Value, json};
use std::{
    ffi::OsStr,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

fn client(name: &str) -> PathBuf {
    tools::root().join("tests/clients").join(name)
}

/// Runs a client, which must succeed, and returns its standard output.
fn run(control: &ControlPlane, program: &Path, arguments: &[&OsStr], agent: &Path, input: &str) -> String {
    let mut command = Command::new(program);
    command.args(arguments).env("COUNTERSIGN_URL", &control.env["URL"]).env("COUNTERSIGN_CA", &control.env["CA"]);
    command.env("AGENT_DIR", agent).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    child.stdin.take().expect("it is piped").write_all(input.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{} {arguments:?}: {error}", program.display());
    String::from_utf8(output.stdout).expect("text")
}

async fn assert_logged_in(control: &ControlPlane, agent: &str, token: &str, claims: &Value) {
    assert_eq!(claims["sub"], agent);
    assert_eq!(claims["iss"], control.env["URL"]);
    assert_eq!(claims["aud"], control.service());
    let lifetime = claims["exp"].as_i64().zip(claims["iat"].as_i64()).map(|(exp, iat)| exp - iat);
    assert_eq!(lifetime, Some(3600));
    assert_eq!(control.verify(token).await.expect(200)["agent"]["id"], agent);
}

async fn assert_client(program: PathBuf, script: &str, form: &str) {
    let control = ControlPlane::start().await;
    let script = client(script);
    let arguments = [script.as_os_str(), form.as_ref(), control.service().as_ref()];
    let printed = run(&control, &program, &arguments, control.folder(), "");
    let printed: Value = serde_json::from_str(&printed).expect("JSON");
    let text = |name: &str| printed[name].as_str().unwrap_or_default();
    assert_logged_in(&control, text("agentId"), text("accessToken"), &printed["claims"]).await;
}

#[tokio::test]
async fn python_logs_in_with_both_forms_of_signatures_and_pyjwt_verifies_the_tokens() {
    for form in ["der", "raw"] {
        assert_client(tools::python(), "agent.py", form).await;
    }
}

#[tokio::test]
async fn node_logs_in_with_both_forms_of_signatures_and_verifies_the_tokens() {
    for form in ["der", "ieee-p1363"] {
        assert_client(tools::node(), "agent.mjs", form).await;
    }
}

#[tokio::test]
async fn openssl_and_curl_log_in_and_verify_token() {
    let control = ControlPlane::start().await;
    let folder = control.folder().join("agent");
    let agent = |arguments: &[&str]| {
        let arguments: Vec<_> = arguments.iter().map(OsStr::new).collect();
        run(&control, &tools::root().join("examples/agent-openssl-curl/agent.sh"), &arguments, &folder, "");
    };
    let read = |file: &str| std::fs::read_to_string(folder.join(file)).unwrap().trim().to_owned();
    agent(&["key"]);
    agent(&["register", "openssl@example.org", r#"O'pen "SSL" \ & Söhne"#]);
    agent(&["login", control.service()]);

    let (id, token) = (read("id"), read("access-token"));
    let claims = run(&control, &client("verify-token.sh"), &[control.service().as_ref()], &folder, &token);
    let claims: Value = serde_json::from_str(&claims).expect("JSON");
    assert_eq!(claims["name"], r#"O'pen "SSL" \ & Söhne"#);
    assert_logged_in(&control, &id, &token, &claims).await;
}

#[tokio::test]
async fn signature_over_the_bytes_of_the_nonce_is_accepted() {
    let control = ControlPlane::start().await;
    let key = openssl::openssl("genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256", b"");
    let public = String::from_utf8(openssl::openssl("pkey -pubout", &key)).unwrap();
    let file = control.folder().join("agent.pem");
    std::fs::write(&file, &key).unwrap();

    let request = json!({ "email": "bytes@example.org", "name": "Bytes", "publicKey": public });
    let agent = control.api.post("/auth/register", request).await.expect(201)["agentId"].clone();
    let challenge = control.api.post("/auth/challenge", json!({ "agentId": agent })).await.expect(200);
    let nonce = challenge["nonce"].as_str().unwrap();
    let sign =
        |message: &[u8]| hex::encode(openssl::openssl(&format!("dgst -sha256 -sign {}", file.display()), message));
    let answer = |signature: String| json!({ "challengeId": challenge["challengeId"], "signature": signature });

    for wrong in [nonce.to_uppercase().into_bytes(), format!("{nonce}\n").into_bytes()] {
        let refused = control.api.post("/auth/authenticate", answer(sign(&wrong))).await;
        assert_eq!(refused.error().1, "INVALID_SIGNATURE", "{}", String::from_utf8_lossy(&wrong));
    }
    let bytes = hex::decode(nonce).unwrap();
    control.api.post("/auth/authenticate", answer(sign(&bytes))).await.expect(200);
}
