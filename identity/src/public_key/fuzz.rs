//! What is accepted as a key is one canonical key, and a signature is worth what aws-lc says of it.

use super::*;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, ParsedPublicKey};
use countersign_mangle::{any_bytes, any_text, cases_divided_by, mutated_bytes, mutated_text};
use p256::{
    SecretKey,
    ecdsa::{SigningKey, signature::Signer},
};
use proptest::{collection::vec, prelude::*, sample::select};
use std::sync::LazyLock;

/// `SEQUENCE { SEQUENCE { id-ecPublicKey, prime256v1 }, BIT STRING }` up to the point, which may be whole ...
const WHOLE: [u8; 26] =
    *b"\x30\x59\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07\x03\x42\x00";
/// ... or compressed.
const COMPRESSED: [u8; 26] =
    *b"\x30\x39\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07\x03\x22\x00";

static SECRET: LazyLock<SecretKey> = LazyLock::new(|| SecretKey::from_slice(&[7; 32]).unwrap());
static KEY: LazyLock<P256PublicKey> = LazyLock::new(|| P256PublicKey(SECRET.public_key()));
static PEM: LazyLock<String> = LazyLock::new(|| armoured(&whole(*KEY)));

const MESSAGE: &[u8] = b"nonce";
static RAW: LazyLock<Signature> = LazyLock::new(|| SigningKey::from(&*SECRET).sign(MESSAGE));

fn whole(key: P256PublicKey) -> Vec<u8> {
    [&WHOLE[..], &key.to_sec1()].concat()
}

fn compressed(key: P256PublicKey) -> Vec<u8> {
    let point = key.to_sec1();
    [&COMPRESSED[..], &[2 + (point[64] & 1)], &point[1..33]].concat()
}

/// Every tag before either length of point: whole, compressed, hybrid, compact, and none of these.
fn tagged() -> impl Strategy<Value = Vec<u8>> {
    (0..8_u8, select(vec![whole(*KEY), compressed(*KEY)])).prop_map(|(tag, mut der)| {
        der[26] = tag;
        der
    })
}

fn armoured(der: &[u8]) -> String {
    format!("{BEGIN}\n{}\n{END}\n", STANDARD.encode(der))
}

/// The four ways to write the one signature: raw and DER, with either s.
fn signatures() -> Vec<Vec<u8>> {
    let twin = Signature::from_scalars(RAW.r().to_bytes(), (-*RAW.s()).to_bytes()).unwrap();
    [*RAW, twin].iter().flat_map(|it| [it.to_bytes().to_vec(), it.to_der().as_bytes().to_vec()]).collect()
}

/// What aws-lc alone, which reads keys and signatures by itself, says of the bytes.
fn independent(key: P256PublicKey, message: &[u8], signature: &[u8]) -> bool {
    [&ECDSA_P256_SHA256_FIXED, &ECDSA_P256_SHA256_ASN1]
        .into_iter()
        .any(|form| ParsedPublicKey::new(form, whole(key)).is_ok_and(|key| key.verify_sig(message, signature).is_ok()))
}

fn verifies(key: P256PublicKey, message: &[u8], hex: &str) -> bool {
    EcdsaSignature::from_hex(hex).is_ok_and(|signature| key.verifies(&[message], &signature))
}

/// A text that is accepted spells one key in one of two canonical ways, and the key is what it says.
fn is_one_canonical_key(text: &str) -> Result<(), TestCaseError> {
    let Ok(key) = P256PublicKey::from_pem(text) else { return Ok(()) };
    let body = text.trim().strip_prefix(BEGIN).and_then(|rest| rest.strip_suffix(END)).unwrap();
    let der = STANDARD.decode(body.split_ascii_whitespace().collect::<String>()).unwrap();
    prop_assert!(der == whole(key) || der == compressed(key), "{} is not canonical", hex::encode(der));
    prop_assert!(ParsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, key.to_sec1()).is_ok(), "{:?} is off the curve", key);
    let canonical = key.to_pem().unwrap();
    let lines: String = canonical.trim().strip_prefix(BEGIN).unwrap().strip_suffix(END).unwrap().split('\n').collect();
    prop_assert_eq!(STANDARD.decode(lines).unwrap(), whole(key));
    prop_assert_eq!(P256PublicKey::from_pem(&canonical), Ok(key));
    prop_assert_eq!(P256PublicKey::from_sec1(&key.to_sec1()), Ok(key));
    prop_assert_eq!(key.fingerprint().unwrap(), format!("sha256:{}", hex::encode(Sha256::digest(whole(key)))));
    for signature in signatures() {
        prop_assert_eq!(verifies(key, MESSAGE, &hex::encode(&signature)), independent(key, MESSAGE, &signature));
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases_divided_by(1))]

    #[test]
    fn a_changed_pem_is_refused_or_one_canonical_key(pem in mutated_text(&PEM)) {
        is_one_canonical_key(&pem)?;
    }

    #[test]
    fn a_changed_key_is_refused_or_one_canonical_key(
        der in prop_oneof![mutated_bytes(&whole(*KEY)), mutated_bytes(&compressed(*KEY)), tagged(), any_bytes()],
        end in select(&["\n", "\r\n", "", " \n\t"][..]),
        columns in 1..80_usize,
        bits in "[A-Za-z0-9+/= ]?",
    ) {
        is_one_canonical_key(&armoured(&der))?;
        is_one_canonical_key(&PEM.replacen("==\n", &format!("==\n{bits}"), 1))?;
        let last = PEM.find("==\n").unwrap();
        is_one_canonical_key(&format!("{}{bits}{}", &PEM[..last - 1], &PEM[last..]))?;
        let text = STANDARD.encode(&der);
        let lines: Vec<&str> = text.as_bytes().chunks(columns).map(|line| std::str::from_utf8(line).unwrap()).collect();
        is_one_canonical_key(&format!("{end}{BEGIN}{end}{}{end}{END}{end}", lines.join(end)))?;
    }

    #[test]
    fn any_key_is_read_in_every_canonical_spelling(seed in any::<[u8; 32]>(), end in select(&["\n", "\r\n", ""][..])) {
        let Ok(secret) = SecretKey::from_slice(&seed) else { return Ok(()) };
        let key = P256PublicKey(secret.public_key());
        for der in [whole(key), compressed(key)] {
            let pem = armoured(&der).replace('\n', end);
            prop_assert_eq!(P256PublicKey::from_pem(&pem), Ok(key));
            is_one_canonical_key(&pem)?;
        }
    }

    #[test]
    fn pieces_of_armour_do_not_make_a_key(
        pieces in vec(prop_oneof![
            4 => select(&[BEGIN, END, "-----BEGIN PRIVATE KEY-----", "-----BEGIN ", "-----", "\n", ""][..]).prop_map(str::to_owned),
            2 => Just(STANDARD.encode(whole(*KEY))),
            1 => any_text(),
        ], 0..7)
    ) {
        let text = pieces.concat();
        is_one_canonical_key(&text)?;
        if text.contains("PRIVATE KEY") && text.len() <= MAX_PEM_BYTES {
            prop_assert_eq!(P256PublicKey::from_pem(&text), Err(PublicKeyError::Private));
        }
    }

    #[test]
    fn a_point_is_65_bytes_on_the_curve(
        point in prop_oneof![tagged().prop_map(|der| der[26..].to_vec()), mutated_bytes(&KEY.to_sec1()), mutated_bytes(&compressed(*KEY)[26..]), any_bytes()]
    ) {
        // aws-lc knows the hybrid form too, which says twice where the point lies.
        let known = point.len() == 65 && point[0] == 4 && ParsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, &point).is_ok();
        match P256PublicKey::from_sec1(&point) {
            Ok(key) => prop_assert_eq!(point, key.to_sec1()),
            Err(error) => prop_assert_eq!((known, error), (false, PublicKeyError::NotP256)),
        }
    }

    #[test]
    fn a_changed_signature_is_worth_what_aws_lc_says(
        signature in select(signatures()).prop_flat_map(|good| mutated_bytes(&good)),
        message in prop_oneof![3 => Just(MESSAGE.to_vec()), 1 => any_bytes()],
    ) {
        let expected = independent(*KEY, &message, &signature);
        prop_assert_eq!(verifies(*KEY, &message, &hex::encode(&signature)), expected);
        prop_assert_eq!(verifies(*KEY, &message, &hex::encode_upper(&signature)), expected);
    }

    #[test]
    fn a_text_is_a_signature_only_if_it_is_the_hex_of_one(
        around in select(&[("", ""), ("", ""), (" ", ""), ("", "\n"), ("0x", ""), ("", "00"), ("", "0")][..]),
        hex in prop_oneof![select(signatures()).prop_flat_map(|good| mutated_text(&hex::encode(good))), select(signatures()).prop_map(hex::encode), any_text(), "[0-9a-f]{0,150}"]
    ) {
        let hex = format!("{}{hex}{}", around.0, around.1);
        let digit = |character: char| character.to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let digits: Option<Vec<u8>> = hex.chars().map(digit).collect();
        let bytes = digits.filter(|digits| digits.len() % 2 == 0);
        let bytes: Option<Vec<u8>> = bytes.map(|digits| digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect());
        let expected = bytes.is_some_and(|bytes| independent(*KEY, MESSAGE, &bytes));
        prop_assert_eq!(verifies(*KEY, MESSAGE, &hex), expected);
    }
}
