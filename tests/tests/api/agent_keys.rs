//! Tests which encodings of an agent's public key the API accepts, and that it refuses private keys.

#![expect(clippy::expect_used, reason = "tests panic if a test key does not parse")]

use base64::{Engine, engine::general_purpose::STANDARD};
use countersign_tests::{
    ControlPlane, HttpResponse,
    openssl::{der, openssl, openssl_text, pem},
};
use serde_json::{Value, json};

const GENERATE_P256: &str = "genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256";

/// The DER prefix of a P-256 public key, up to the point.
const SPKI_PREFIX: &str = "3059301306072a8648ce3d020106082a8648ce3d030107034200";

/// The prime of the curve's field.
const PRIME: &str = "ffffffff00000001000000000000000000000000ffffffffffffffffffffffff";

fn public_pem(private: &str) -> String {
    openssl_text("pkey -pubout", private)
}

fn generate(arguments: &str) -> String {
    openssl_text(arguments, "")
}

async fn register(control: &ControlPlane, key: Value) -> HttpResponse {
    let body = json!({ "email": "owner@example.org", "name": "Keys", "publicKey": key });
    control.api.post("/auth/register", body).await
}

/// The PEM of an uncompressed point in hex, which need not be on the curve.
fn pem_of_point(point: &str) -> String {
    pem("PUBLIC KEY", &hex::decode(format!("{SPKI_PREFIX}{point}")).expect("the text is hex"))
}

/// A point with a small x, and the same point with p added to x: a parser that reduces modulo p before it checks the
/// range would accept both.
fn small_point_and_alias() -> (String, String) {
    let compressed = |x: u8| [&[2][..], &[0; 31], &[x]].concat();
    let point = (1..=255)
        .find_map(|x| p256::PublicKey::from_sec1_bytes(&compressed(x)).ok())
        .expect("a point with a small x exists");
    let point = hex::encode(point.to_sec1_bytes());
    let x = u8::from_str_radix(&point[64..66], 16).expect("the text is hex");
    // The lowest 96 bits of the prime p are ones, and the 32-bit word above these bits is 0: in x + p, the carry makes
    // this word 1, and the lowest 96 bits are x - 1.
    let alias = format!("04{}00000001{:024x}{}", &PRIME[..32], x - 1, &point[66..]);
    (pem_of_point(&point), pem_of_point(&alias))
}

#[tokio::test]
async fn every_public_key_encoding_registers_the_same_agent_and_hash() {
    let control = ControlPlane::shared().await;
    let public = public_pem(&generate(GENERATE_P256));
    let canonical = openssl("pkey -pubin -pubout -outform DER", public.as_bytes());
    let hash = openssl("dgst -sha256 -binary", &canonical);
    let expected = format!("sha256:{}", hex::encode(hash));
    let compressed = openssl_text("pkey -pubin -ec_conv_form compressed -pubout", &public);
    assert_ne!(compressed, public);
    let body = STANDARD.encode(&canonical);
    let with_lines_of = |width: usize| {
        let lines: Vec<_> = body.as_bytes().chunks(width).map(String::from_utf8_lossy).collect();
        format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", lines.join("\n"))
    };

    let first = register(&control, json!(public)).await.expect(201);
    assert_eq!(first["publicKeyHash"], expected);
    for (name, encoding) in [
        ("CRLF", public.replace('\n', "\r\n")),
        ("no final newline", public.trim_end().to_owned()),
        ("compressed", compressed.clone()),
        ("compressed with CRLF", compressed.replace('\n', "\r\n")),
        ("white space around", format!(" \t\r\n\n{public}\n\n \t")),
        // RFC 7468 requires writers to use lines of 64 characters, but encoders of browser exports write one line, and MIME
        // encoders write lines of 76.
        ("lines of 48", with_lines_of(48)),
        ("lines of 76", with_lines_of(76)),
        ("one line", with_lines_of(usize::MAX)),
    ] {
        assert_eq!(register(&control, json!(encoding)).await.expect(201), first, "{name}");
    }
}

fn unsupported_keys() -> Vec<(&'static str, String)> {
    let public = |arguments: &str| public_pem(&generate(arguments));
    let certificate = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout /dev/null -subj /CN=a";
    let p256 = public(GENERATE_P256);
    vec![
        ("P-384", public("genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-384")),
        ("P-521", public("genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-521")),
        ("secp256k1", public("genpkey -algorithm EC -pkeyopt ec_paramgen_curve:secp256k1")),
        ("brainpoolP256r1", public("genpkey -algorithm EC -pkeyopt ec_paramgen_curve:brainpoolP256r1")),
        ("Ed25519", public("genpkey -algorithm ED25519")),
        ("X25519", public("genpkey -algorithm X25519")),
        ("RSA", public("genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048")),
        ("explicit parameters", openssl_text("pkey -pubin -ec_param_enc explicit -pubout", &p256)),
        ("certificate", generate(certificate)),
        ("parameters only", generate("ecparam -name prime256v1")),
        ("two blocks", p256.repeat(2)),
        ("two keys", format!("{p256}{}", public(GENERATE_P256))),
    ]
}

/// Edits a DER key and encodes it as PEM.
fn edited_pem(der: &[u8], edit: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut der = der.to_vec();
    edit(&mut der);
    pem("PUBLIC KEY", &der)
}

fn invalid_points() -> Vec<(&'static str, String)> {
    let public = public_pem(&generate(GENERATE_P256));
    let der = der(&public);
    let point = hex::encode(&der[26..]);
    let infinity = hex::decode("3019301306072a8648ce3d020106082a8648ce3d03010703020000").expect("the text is hex");
    let point_of_33_bytes = |form: u8, x: &[u8]| {
        edited_pem(&der, |der| {
            der.truncate(26);
            der.push(form);
            der.extend(x);
            (der[1], der[24]) = (0x39, 0x22);
        })
    };
    vec![
        ("off the curve", edited_pem(&der, |der| *der.last_mut().expect("the DER is not empty") ^= 1)),
        ("infinity", pem("PUBLIC KEY", &infinity)),
        ("zeros", pem_of_point(&format!("04{}", "00".repeat(64)))),
        ("ones", pem_of_point(&format!("04{}", "ff".repeat(64)))),
        ("x is p", pem_of_point(&format!("04{PRIME}{}", &point[66..]))),
        ("x is above p", small_point_and_alias().1),
        ("compressed, x above p", point_of_33_bytes(2, &[0xff; 32])),
        ("compact point", point_of_33_bytes(5, &der[27..59])),
        ("hybrid point", openssl_text("pkey -pubin -ec_conv_form hybrid -pubout", &public)),
        ("unknown form of point", edited_pem(&der, |der| der[26] = 8)),
    ]
}

fn invalid_der_encodings() -> Vec<(&'static str, String)> {
    let der = der(&public_pem(&generate(GENERATE_P256)));
    vec![
        ("data after the key", edited_pem(&der, |der| der.push(0))),
        (
            "data inside the key",
            edited_pem(&der, |der| {
                der.extend([5, 0]);
                der[1] += 2;
            }),
        ),
        (
            "data inside the point",
            edited_pem(&der, |der| {
                der.push(0);
                der[1] += 1;
                der[24] += 1;
            }),
        ),
        (
            "indefinite length",
            edited_pem(&der, |der| {
                der[1] = 0x80;
                der.extend([0, 0]);
            }),
        ),
        ("length in long form", edited_pem(&der, |der| der.splice(1..2, [0x81, 0x59]).for_each(drop))),
        ("unused bits", edited_pem(&der, |der| der[25] = 1)),
        ("truncated DER", edited_pem(&der, |der| der.truncate(80))),
        ("no DER", pem("PUBLIC KEY", &[])),
    ]
}

fn invalid_pem_texts() -> Vec<(&'static str, String)> {
    let public = public_pem(&generate(GENERATE_P256));
    let body: String = public.lines().nth(1).expect("the PEM has a line of base64").to_owned();
    vec![
        ("truncated base64", public.replace(&body, &body[..61])),
        ("a line of base64 missing", public.replace(&format!("{body}\n"), "")),
        ("not base64", public.replacen(&body, &format!("!{}", &body[1..]), 1)),
        ("NUL at the end", format!("{public}\0")),
        ("NUL inside", public.replacen('\n', "\n\0", 1)),
        ("text before", format!("my key:\n{public}")),
        ("text after", format!("{public}x")),
        ("another end label", public.replace("END PUBLIC", "END OTHER")),
        ("no end line", public.replace("-----END PUBLIC KEY-----\n", "")),
        ("another label", public.replace("PUBLIC KEY", "EC PUBLIC KEY")),
        ("no PEM", body),
        ("5 KiB of white space", format!("{public}{}", " ".repeat(5 * 1024))),
        ("5 KiB of base64", pem("PUBLIC KEY", &[0x30; 5 * 1024])),
        ("empty", String::new()),
        ("white space", " \n".to_owned()),
    ]
}

/// Returns a description if the response is not the expected refusal.
fn mismatch(name: &str, response: &HttpResponse) -> Option<String> {
    let fields = response.body["error"]["details"]["fields"].as_object();
    let names: Vec<_> = fields.into_iter().flat_map(|fields| fields.keys()).collect();
    let is_expected = response.status == 400 && response.error().1 == "VALIDATION_ERROR" && names == ["publicKey"];
    (!is_expected).then(|| format!("{name}: {} {}", response.status, response.body))
}

#[tokio::test]
async fn invalid_public_keys_are_refused_with_the_field_name() {
    let control = ControlPlane::shared().await;
    let texts = [unsupported_keys(), invalid_points(), invalid_der_encodings(), invalid_pem_texts()];
    let mut mismatches = Vec::new();
    for (name, key) in texts.into_iter().flatten() {
        mismatches.extend(mismatch(name, &register(&control, json!(key)).await));
    }
    assert!(mismatches.is_empty(), "{mismatches:#?}");
}

#[tokio::test]
async fn unmodified_test_keys_are_accepted() {
    let control = ControlPlane::shared().await;
    let (small, alias) = small_point_and_alias();
    assert_ne!(small, alias);
    register(&control, json!(small)).await.expect(201);
    let point = hex::encode(&der(&small)[26..]);
    register(&control, json!(pem_of_point(&point))).await.expect(201);
    assert_eq!(openssl_text("pkey -pubin -pubout", &small), small, "OpenSSL accepts the unmodified key");
}

#[tokio::test]
async fn private_keys_are_refused_and_never_logged() {
    let control = ControlPlane::start_process_with(&["log.level=trace"]).await;
    let private = generate(GENERATE_P256);
    let sec1 = openssl_text("pkey -traditional", &private);
    let encrypted = openssl_text("pkcs8 -topk8 -passout pass:a", &private);
    let public_and_private = format!("{}{private}", public_pem(&private));
    let relabelled = private.replace("PRIVATE", "PUBLIC");
    for (name, key) in [
        ("PKCS #8", &private),
        ("SEC 1", &sec1),
        ("encrypted", &encrypted),
        ("public and private", &public_and_private),
        ("labelled public", &relabelled),
    ] {
        let refused = register(&control, json!(key)).await;
        assert_eq!(mismatch(name, &refused), None);
        let secret_lines = key.lines().filter(|line| line.len() > 20 && !line.contains("-----"));
        for line in secret_lines {
            assert!(!control.log().contains(line), "{name} is in the log");
            assert!(!refused.body.to_string().contains(line), "{name} is in the response");
        }
    }
}
