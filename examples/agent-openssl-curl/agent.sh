#!/usr/bin/env bash
# An agent that uses only openssl and curl. It shows everything that an agent does: there is no library and no shared
# secret, and the private key never leaves this machine.
#
#   agent.sh key                        creates a P-256 key pair
#   agent.sh register EMAIL NAME        registers the public key, saves the agent id
#   agent.sh login [SERVICE_ID]         signs a challenge, saves an access token (valid for an hour)
#   agent.sh call URL [CURL_OPTION...]  calls a service with the token
#
# Environment (a development server writes the first two into its dev.env):
#   COUNTERSIGN_URL   the URL of the control plane, such as https://localhost:8443
#   COUNTERSIGN_CA    a PEM file with the trusted authority (default: those of the system)
#   AGENT_DIR         the folder with the key, id and tokens of this agent (default: ./agent)
#
# It exits with 1 if a server refuses a request, and prints the response.
set -euo pipefail

dir="${AGENT_DIR:-./agent}"
umask 077 # other users cannot read the files of this script

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
    [ ! -e "$dir/key.pem" ] || fail "$dir/key.pem exists: for another agent, set another AGENT_DIR"
    mkdir -p "$dir"
    openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$dir/key.pem"
    openssl pkey -in "$dir/key.pem" -pubout -out "$dir/public.pem"
    echo "created $dir/key.pem"
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
    # The service is the audience of the token. The default is the service of the agent's oldest role.
    [ -z "$service" ] || extra=",\"serviceId\":$(json_string "$service")"

    post /auth/challenge "{\"agentId\":\"$id\"$extra}"
    challenge=$(field challengeId)
    signature=$(field nonce | sign)

    post /auth/authenticate "{\"challengeId\":\"$challenge\",\"signature\":\"$signature\"$extra}"
    field accessToken >"$dir/access-token"
    field refreshToken >"$dir/refresh-token"
    echo "logged in; the token is in $dir/access-token"
}

# Signs the text of the nonce, not the bytes that its hex stands for. `tr` removes the line end, which is not part of the
# nonce. The output is the DER signature of openssl in hex.
sign() {
    tr -d '\n' | openssl dgst -sha256 -sign "$dir/key.pem" | od -An -v -tx1 | tr -d ' \n'
}

call() {
    local token
    token=$(saved access-token "agent.sh login")
    # The token is passed in a file, because every user of this machine can read command lines.
    printf 'Authorization: Bearer %s\n' "$token" >"$dir/authorization"
    request --header "@$dir/authorization" "$@"
    printf '%s\n' "$response"
}

# post PATH JSON: sends a request to the control plane.
post() {
    local trust=()
    [ -z "${COUNTERSIGN_CA:-}" ] || trust=(--cacert "$COUNTERSIGN_CA")
    request "${trust[@]}" --header 'Content-Type: application/json' --data-binary @- \
        "${COUNTERSIGN_URL:?the URL of the control plane, such as https://localhost:8443}$1" <<<"$2"
}

# Runs curl, and sets $response to the body. Prints any response but 2xx, and ends the script.
request() {
    local status
    response=$(curl --silent --show-error --max-time 10 --write-out '\n%{http_code}' "$@") ||
        fail "no response"
    status=${response##*$'\n'}
    response=${response%$'\n'*}
    [[ $status == 2* ]] || fail "HTTP $status: $response"
}

# field NAME: a string field of the last response. Ids and tokens contain no quotes and no escapes, so a pattern is
# enough to extract them.
field() {
    local value
    value=$(sed -n 's/.*"'"$1"'"[[:space:]]*:[[:space:]]*"\([^"]*\)".*/\1/p' <<<"$response")
    [ -n "$value" ] || fail "no $1 in: $response"
    printf '%s\n' "$value"
}

# saved FILE COMMAND: the content of a file that the step COMMAND creates.
saved() {
    cat "$dir/$1" 2>/dev/null || fail "$dir/$1 does not exist: run $2 first"
}

# json_string TEXT: the text as a JSON string. It escapes line ends only, since a PEM has no other control characters.
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
