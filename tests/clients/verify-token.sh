#!/usr/bin/env bash
# Verifies an access token with only openssl and curl, and prints its claims.
#
#   verify-token.sh SERVICE_ID <token
#
# Environment: COUNTERSIGN_URL is the URL of the control plane, COUNTERSIGN_CA its certificate authority.
set -euo pipefail

service="${1:?a service id}"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

main() {
    IFS=. read -r header payload signature || [ -n "$signature" ] # the line may have no newline
    local claims key
    claims=$(decode "$payload")
    key=$(published_key "$(decode "$header" | field kid)")

    [ "$(decode "$header" | field alg)" = ES256 ] || fail "the algorithm is not ES256"
    public_key "$(field x <<<"$key")" "$(field y <<<"$key")" >"$folder/key.der"
    decode "$signature" | hex | der_signature >"$folder/signature.der"
    printf '%s.%s' "$header" "$payload" |
        openssl dgst -sha256 -keyform DER -verify "$folder/key.der" -signature "$folder/signature.der" >/dev/null ||
        fail "the signature is invalid"

    [ "$(field iss <<<"$claims")" = "$COUNTERSIGN_URL" ] || fail "the token is from another issuer"
    [ "$(field aud <<<"$claims")" = "$service" ] || fail "the token is for another service"
    [ "$(sed -n 's/.*"exp":\([0-9]*\).*/\1/p' <<<"$claims")" -gt "$(date +%s)" ] || fail "the token has expired"
    printf '%s\n' "$claims"
}

# The JSON of the published key with this kid.
published_key() {
    curl --silent --show-error --fail --cacert "$COUNTERSIGN_CA" "$COUNTERSIGN_URL/.well-known/jwks.json" |
        grep -o '{[^{}]*}' | grep -F "\"kid\":\"$1\"" || fail "no published key has the kid $1"
}

# A P-256 key in DER: the constant prefix, then the point 04 x y.
public_key() {
    printf '%s' 3059301306072a8648ce3d020106082a8648ce3d03010703420004 "$(decode "$1" | hex)" "$(decode "$2" | hex)" |
        unhex
}

# Converts 64 bytes r and s in hex to DER for openssl.
der_signature() {
    local both
    read -r both
    printf 'asn1=SEQUENCE:both\n[both]\nr=INTEGER:0x%s\ns=INTEGER:0x%s\n' "${both:0:64}" "${both:64:64}" >"$folder/asn1.conf"
    openssl asn1parse -genconf "$folder/asn1.conf" -noout -out "$folder/der"
    cat "$folder/der"
}

# base64url, without padding.
decode() {
    local text="${1//-/+}" padding="==="
    text="${text//_//}"
    printf '%s%s' "$text" "${padding:0:$(((4 - ${#text} % 4) % 4))}" | openssl base64 -d -A
}

hex() {
    od -An -v -tx1 | tr -d ' \n'
    echo
}

unhex() {
    # shellcheck disable=SC2059 # the format is the content: \x04\x1f…
    printf "$(tr -d '\n' | sed 's/../\\x&/g')"
}

field() {
    sed -n 's/.*"'"$1"'":"\([^"]*\)".*/\1/p'
}

fail() {
    echo "verify-token.sh: $*" >&2
    exit 1
}

main
