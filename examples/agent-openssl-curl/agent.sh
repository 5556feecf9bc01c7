#!/usr/bin/env bash
# An agent made of openssl and curl alone. It shows all that an agent does: no library, no shared secret,
# and a private key that never leaves this machine.
#
#   agent.sh key                        makes a P-256 key pair
#   agent.sh register EMAIL NAME        hands in the public key, gets an agent id
#   agent.sh login [SERVICE_ID]         signs a challenge, gets an access token (good for an hour)
#   agent.sh call URL [CURL_OPTION...]  calls a service with the token
#
# Environment (a development server writes the first two into its dev.env):
#   COUNTERSIGN_URL   where the service is, as https://localhost:8443
#   COUNTERSIGN_CA    a PEM file with the authority to trust; without it, those of the system
#   AGENT_DIR         where this agent keeps its key, id and tokens (default: ./agent)
#
# It exits with 1 if a server refuses, and shows what the server said.
set -euo pipefail

dir="${AGENT_DIR:-./agent}"
umask 077 # whatever is written here is this user's alone

main() {
    local command="${1:-}"
    [ $# -eq 0 ] || shift
    case "$command" in
    key) make_key ;;
    register) register "${1:?an e-mail address}" "${2:?a name}" ;;
    login) login "${1:-}" ;;
    call) call "${1:?a URL}" "${@:2}" ;;
    *) usage ;;
    esac
}

make_key() {
    [ ! -e "$dir/key.pem" ] || fail "$dir/key.pem exists: to another key belongs another agent, so take another AGENT_DIR"
    mkdir -p "$dir"
    openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$dir/key.pem"
    openssl pkey -in "$dir/key.pem" -pubout -out "$dir/public.pem"
    echo "made $dir/key.pem"
}

register() {
    local pem
    pem=$(saved public.pem "agent.sh key")
    post /auth/register "$(printf '{"email":%s,"name":%s,"publicKey":%s}' \
        "$(json_string "$1")" "$(json_string "$2")" "$(json_string "$pem")")"
    field agentId >"$dir/id"
    echo "registered as $(cat "$dir/id")"
}

login() {
    local service="$1" extra="" id challenge signature
    id=$(saved id "agent.sh register")
    # A token is for one service. Left out, it is the one where this agent has had a role for longest.
    [ -z "$service" ] || extra=",\"serviceId\":$(json_string "$service")"

    post /auth/challenge "{\"agentId\":\"$id\"$extra}"
    challenge=$(field challengeId)
    signature=$(field nonce | sign)

    post /auth/authenticate "{\"challengeId\":\"$challenge\",\"signature\":\"$signature\"$extra}"
    field accessToken >"$dir/access-token"
    field refreshToken >"$dir/refresh-token"
    echo "logged in; the token is in $dir/access-token"
}

# Signs the nonce: its characters as they came, not the bytes that the hex stands for. `tr` takes away the
# line's end, which is no part of it. Out comes the DER signature that openssl makes, as hex.
sign() {
    tr -d '\n' | openssl dgst -sha256 -sign "$dir/key.pem" | od -An -v -tx1 | tr -d ' \n'
}

call() {
    local token
    token=$(saved access-token "agent.sh login")
    # From a file, for every user of this machine can read command lines.
    printf 'Authorization: Bearer %s\n' "$token" >"$dir/authorization"
    request --header "@$dir/authorization" "$@"
    printf '%s\n' "$answer"
}

# post PATH JSON: to the identity service.
post() {
    local trust=()
    [ -z "${COUNTERSIGN_CA:-}" ] || trust=(--cacert "$COUNTERSIGN_CA")
    request "${trust[@]}" --header 'Content-Type: application/json' --data-binary @- \
        "${COUNTERSIGN_URL:?where the service is, as https://localhost:8443}$1" <<<"$2"
}

# Runs curl; leaves the body in $answer. Anything but a 2xx is shown, and ends the script.
request() {
    local status
    answer=$(curl --silent --show-error --max-time 10 --write-out '\n%{http_code}' "$@") ||
        fail "no answer"
    status=${answer##*$'\n'}
    answer=${answer%$'\n'*}
    [[ $status == 2* ]] || fail "HTTP $status: $answer"
}

# field NAME: a string field of the last answer. Ids and tokens hold no quotes and no escapes, so a
# pattern is enough to find them.
field() {
    local value
    value=$(sed -n 's/.*"'"$1"'"[[:space:]]*:[[:space:]]*"\([^"]*\)".*/\1/p' <<<"$answer")
    [ -n "$value" ] || fail "no $1 in: $answer"
    printf '%s\n' "$value"
}

# saved FILE COMMAND: what an earlier step left here; COMMAND is that step.
saved() {
    cat "$dir/$1" 2>/dev/null || fail "there is no $dir/$1 yet: $2 comes first"
}

# A text as a JSON string; of the control characters it knows the line's end, which is all that a PEM has.
json_string() {
    local text="${1//\\/\\\\}"
    text="${text//\"/\\\"}"
    text="${text//$'\r'/}"
    printf '"%s"' "${text//$'\n'/\\n}"
}

usage() {
    sed -n '2,/^set -e/s/^# \{0,1\}//p' "$0" >&2
    exit 2
}

fail() {
    echo "agent.sh: $*" >&2
    exit 1
}

main "$@"
