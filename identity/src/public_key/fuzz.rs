//! Property tests: a text that we accept as a key is one of its two canonical encodings, and we accept a signature if and only if
//! aws-lc accepts it without our code.

use super::*;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, ParsedPublicKey};
use countersign_mangle::{any_bytes, any_text, cases_divided_by, mutated_bytes, mutated_text};
use p256::{
    SecretKey,
    ecdsa::{SigningKey, signature::Signer},
};
use proptest::{collection::vec, prelude::*, sample::select};
use std::sync::LazyLock;

/// The DER of `SEQUENCE { SEQUENCE { id-ecPublicKey, prime256v1 }, BIT STRING }` before an uncompressed point.
const UNCOMPRESSED_PREFIX: [u8; 26] =
    *b"\x30\x59\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07\x03\x42\x00";
/// The DER of `SEQUENCE { SEQUENCE { id-ecPublicKey, prime256v1 }, BIT STRING }` before a compressed point.
const COMPRESSED_PREFIX: [u8; 26] =
    *b"\x30\x39\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07\x03\x22\x00";

static SECRET_KEY: LazyLock<SecretKey> = LazyLock::new(|| SecretKey::from_slice(&[7; 32]).unwrap());
static PUBLIC_KEY: LazyLock<P256PublicKey> = LazyLock::new(|| P256PublicKey(SECRET_KEY.public_key()));
static PUBLIC_KEY_PEM: LazyLock<String> = LazyLock::new(|| to_pem(&uncompressed(*PUBLIC_KEY)));

const MESSAGE: &[u8] = b"nonce";
static SIGNATURE: LazyLock<Signature> = LazyLock::new(|| SigningKey::from(&*SECRET_KEY).sign(MESSAGE));

fn uncompressed(key: P256PublicKey) -> Vec<u8> {
    [&UNCOMPRESSED_PREFIX[..], &key.to_sec1()].concat()
}

fn compressed(key: P256PublicKey) -> Vec<u8> {
    let point = key.to_sec1();
    [&COMPRESSED_PREFIX[..], &[2 + (point[64] & 1)], &point[1..33]].concat()
}

/// Public keys in DER whose point has any tag: uncompressed, compressed, hybrid, compact or invalid.
fn keys_with_any_tag() -> impl Strategy<Value = Vec<u8>> {
    (0..8_u8, select(vec![uncompressed(*PUBLIC_KEY), compressed(*PUBLIC_KEY)])).prop_map(|(tag, mut der)| {
        der[26] = tag;
        der
    })
}

fn to_pem(der: &[u8]) -> String {
    format!("{PEM_BEGIN}\n{}\n{PEM_END}\n", STANDARD.encode(der))
}

/// Four encodings of the signature: raw and DER, each with `s` and with negated `s`.
fn signatures() -> Vec<Vec<u8>> {
    let negated_s = Signature::from_scalars(SIGNATURE.r().to_bytes(), (-*SIGNATURE.s()).to_bytes()).unwrap();
    [*SIGNATURE, negated_s]
        .iter()
        .flat_map(|signature| [signature.to_bytes().to_vec(), signature.to_der().as_bytes().to_vec()])
        .collect()
}

/// Verifies with aws-lc alone, which parses the key and the signature itself.
fn verifies_with_aws_lc(key: P256PublicKey, message: &[u8], signature: &[u8]) -> bool {
    [&ECDSA_P256_SHA256_FIXED, &ECDSA_P256_SHA256_ASN1].into_iter().any(|form| {
        ParsedPublicKey::new(form, uncompressed(key)).is_ok_and(|key| key.verify_sig(message, signature).is_ok())
    })
}

fn verifies(key: P256PublicKey, message: &[u8], hex: &str) -> bool {
    EcdsaSignature::from_hex(hex).is_ok_and(|signature| key.verifies(&[message], &signature))
}

/// Checks that the text, if it is accepted, is one of the two canonical encodings of its key.
fn check_canonical(text: &str) -> Result<(), TestCaseError> {
    let Ok(key) = P256PublicKey::from_pem(text) else { return Ok(()) };
    let body = text.trim().strip_prefix(PEM_BEGIN).and_then(|rest| rest.strip_suffix(PEM_END)).unwrap();
    let der = STANDARD.decode(body.split_ascii_whitespace().collect::<String>()).unwrap();
    prop_assert!(der == uncompressed(key) || der == compressed(key), "{} is not canonical", hex::encode(der));
    prop_assert!(ParsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, key.to_sec1()).is_ok(), "{:?} is off the curve", key);
    let canonical = key.to_pem().unwrap();
    let lines: String =
        canonical.trim().strip_prefix(PEM_BEGIN).unwrap().strip_suffix(PEM_END).unwrap().split('\n').collect();
    prop_assert_eq!(STANDARD.decode(lines).unwrap(), uncompressed(key));
    prop_assert_eq!(P256PublicKey::from_pem(&canonical), Ok(key));
    prop_assert_eq!(P256PublicKey::from_sec1(&key.to_sec1()), Ok(key));
    prop_assert_eq!(key.fingerprint().unwrap(), format!("sha256:{}", hex::encode(Sha256::digest(uncompressed(key)))));
    for signature in signatures() {
        prop_assert_eq!(
            verifies(key, MESSAGE, &hex::encode(&signature)),
            verifies_with_aws_lc(key, MESSAGE, &signature)
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases_divided_by(1))]

    #[test]
    fn mutated_pem_is_refused_or_canonical(pem in mutated_text(&PUBLIC_KEY_PEM)) {
        check_canonical(&pem)?;
    }

    #[test]
    fn mutated_der_is_refused_or_canonical(
        der in prop_oneof![mutated_bytes(&uncompressed(*PUBLIC_KEY)), mutated_bytes(&compressed(*PUBLIC_KEY)), keys_with_any_tag(), any_bytes()],
        end in select(&["\n", "\r\n", "", " \n\t"][..]),
        columns in 1..80_usize,
        extra in "[A-Za-z0-9+/= ]?",
    ) {
        check_canonical(&to_pem(&der))?;
        check_canonical(&PUBLIC_KEY_PEM.replacen("==\n", &format!("==\n{extra}"), 1))?;
        let last = PUBLIC_KEY_PEM.find("==\n").unwrap();
        check_canonical(&format!("{}{extra}{}", &PUBLIC_KEY_PEM[..last - 1], &PUBLIC_KEY_PEM[last..]))?;
        let text = STANDARD.encode(&der);
        let lines: Vec<&str> = text.as_bytes().chunks(columns).map(|line| std::str::from_utf8(line).unwrap()).collect();
        check_canonical(&format!("{end}{PEM_BEGIN}{end}{}{end}{PEM_END}{end}", lines.join(end)))?;
    }

    #[test]
    fn any_key_parses_in_both_canonical_encodings(seed in any::<[u8; 32]>(), end in select(&["\n", "\r\n", ""][..])) {
        let Ok(secret) = SecretKey::from_slice(&seed) else { return Ok(()) };
        let key = P256PublicKey(secret.public_key());
        for der in [uncompressed(key), compressed(key)] {
            let pem = to_pem(&der).replace('\n', end);
            prop_assert_eq!(P256PublicKey::from_pem(&pem), Ok(key));
            check_canonical(&pem)?;
        }
    }

    #[test]
    fn fragments_of_pem_are_refused_or_canonical(
        pieces in vec(prop_oneof![
            4 => select(&[PEM_BEGIN, PEM_END, "-----BEGIN PRIVATE KEY-----", "-----BEGIN ", "-----", "\n", ""][..]).prop_map(str::to_owned),
            2 => Just(STANDARD.encode(uncompressed(*PUBLIC_KEY))),
            1 => any_text(),
        ], 0..7)
    ) {
        let text = pieces.concat();
        check_canonical(&text)?;
        if text.contains("PRIVATE KEY") && text.len() <= MAX_PEM_BYTES {
            prop_assert_eq!(P256PublicKey::from_pem(&text), Err(PublicKeyError::Private));
        }
    }

    #[test]
    fn from_sec1_accepts_only_65_bytes_on_the_curve(
        point in prop_oneof![keys_with_any_tag().prop_map(|der| der[26..].to_vec()), mutated_bytes(&PUBLIC_KEY.to_sec1()), mutated_bytes(&compressed(*PUBLIC_KEY)[26..]), any_bytes()]
    ) {
        // aws-lc also accepts the hybrid form of a point, which states the parity of y twice.
        let valid = point.len() == 65 && point[0] == 4 && ParsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, &point).is_ok();
        match P256PublicKey::from_sec1(&point) {
            Ok(key) => prop_assert_eq!(point, key.to_sec1()),
            Err(error) => prop_assert_eq!((valid, error), (false, PublicKeyError::NotP256)),
        }
    }

    #[test]
    fn mutated_signature_verifies_only_if_aws_lc_agrees(
        signature in select(signatures()).prop_flat_map(|signature| mutated_bytes(&signature)),
        message in prop_oneof![3 => Just(MESSAGE.to_vec()), 1 => any_bytes()],
    ) {
        let expected = verifies_with_aws_lc(*PUBLIC_KEY, &message, &signature);
        prop_assert_eq!(verifies(*PUBLIC_KEY, &message, &hex::encode(&signature)), expected);
        prop_assert_eq!(verifies(*PUBLIC_KEY, &message, &hex::encode_upper(&signature)), expected);
    }

    #[test]
    fn from_hex_accepts_only_plain_hex_of_a_signature(
        around in select(&[("", ""), ("", ""), (" ", ""), ("", "\n"), ("0x", ""), ("", "00"), ("", "0")][..]),
        hex in prop_oneof![select(signatures()).prop_flat_map(|signature| mutated_text(&hex::encode(signature))), select(signatures()).prop_map(hex::encode), any_text(), "[0-9a-f]{0,150}"]
    ) {
        let hex = format!("{}{hex}{}", around.0, around.1);
        let digit = |character: char| character.to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let digits: Option<Vec<u8>> = hex.chars().map(digit).collect();
        let bytes = digits.filter(|digits| digits.len() % 2 == 0);
        let bytes: Option<Vec<u8>> = bytes.map(|digits| digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect());
        let expected = bytes.is_some_and(|bytes| verifies_with_aws_lc(*PUBLIC_KEY, MESSAGE, &bytes));
        prop_assert_eq!(verifies(*PUBLIC_KEY, MESSAGE, &hex), expected);
    }
}
