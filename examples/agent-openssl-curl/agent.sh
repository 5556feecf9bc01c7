#!/usr/bin/env bash
# An agent that uses only openssl and curl. It shows all steps of an agent. An agent needs no library and no shared secret,
# and its private key never leaves this machine.
#
#   agent.sh key                        creates a P-256 key pair
#   agent.sh register EMAIL NAME        registers the public key and saves the agent id
#   agent.sh login [SERVICE_ID]         signs a challenge and saves an access token, which is valid for an hour
#   agent.sh call URL [CURL_OPTION...]  calls a service with the token
#
# Environment variables (a control plane with --dev writes the first two to dev.env):
#   COUNTERSIGN_URL   the URL of the control plane, such as https://localhost:8443
#   COUNTERSIGN_CA    a PEM file with the trusted CA certificates (default: those of the system)
#   AGENT_DIR         the folder with the key, the id and the tokens of this agent (default: ./agent)
#
# If a server refuses a request, the script prints the response and exits with 1.
set -euo pipefail

dir="${AGENT_DIR:-./agent}"
umask 077 # only the owner can read the files that this script creates

main() {
    local command="${1:-}"
    [ $# -eq 0 ] || shift
    case "$command" in
    key) create_key ;;
    register) register "${1:?an e-mail address}" "${2:?a name}" ;;
    login) login "${1:-}" ;;
    call) call "${1:?a URL}" "${@:2}" ;;
    *) usage ;;
    esac
}

create_key() {
    [ ! -e "$dir/key.pem" ] || fail "$dir/key.pem exists: set AGENT_DIR to another folder for another agent"
    mkdir -p "$dir"
    openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$dir/key.pem"
    openssl pkey -in "$dir/key.pem" -pubout -out "$dir/public.pem"
    echo "created $dir/key.pem"
}

register() {
    local pem
    pem=$(read_saved public.pem "agent.sh key")
    send_json /auth/register "$(printf '{"email":%s,"name":%s,"publicKey":%s}' \
        "$(json_string "$1")" "$(json_string "$2")" "$(json_string "$pem")")"
    field agentId >"$dir/id"
    echo "registered as $(cat "$dir/id")"
}

login() {
    local service="$1" service_field="" id challenge signature
    id=$(read_saved id "agent.sh register")
    # The service is the audience of the token. Without a service, the control plane chooses the default service of the agent.
    [ -z "$service" ] || service_field=",\"serviceId\":$(json_string "$service")"

    send_json /auth/challenge "{\"agentId\":\"$id\"$service_field}"
    challenge=$(field challengeId)
    signature=$(field nonce | sign)

    send_json /auth/authenticate "{\"challengeId\":\"$challenge\",\"signature\":\"$signature\"$service_field}"
    field accessToken >"$dir/access-token"
    field refreshToken >"$dir/refresh-token"
    echo "logged in; the token is in $dir/access-token"
}

# Signs the nonce from standard input: its text, not the bytes that the text encodes in hex. `tr` removes the line end, which
# is not part of the nonce. Prints the DER signature in hex.
sign() {
    tr -d '\n' | openssl dgst -sha256 -sign "$dir/key.pem" | od -An -v -tx1 | tr -d ' \n'
}

call() {
    local token
    token=$(read_saved access-token "agent.sh login")
    # The token is in a file, because other users of this machine can read the arguments of processes.
    printf 'Authorization: Bearer %s\n' "$token" >"$dir/authorization"
    request --header "@$dir/authorization" "$@"
    printf '%s\n' "$response"
}

# send_json PATH JSON: sends a POST request to the control plane.
send_json() {
    local ca_options=()
    [ -z "${COUNTERSIGN_CA:-}" ] || ca_options=(--cacert "$COUNTERSIGN_CA")
    request "${ca_options[@]}" --header 'Content-Type: application/json' --data-binary @- \
        "${COUNTERSIGN_URL:?the URL of the control plane, such as https://localhost:8443}$1" <<<"$2"
}

# request CURL_OPTION...: runs curl and sets $response to the body. If the status is not 2xx, prints the response and exits.
request() {
    local status
    response=$(curl --silent --show-error --max-time 10 --write-out '\n%{http_code}' "$@") ||
        fail "the request failed"
    status=${response##*$'\n'}
    response=${response%$'\n'*}
    [[ $status == 2* ]] || fail "HTTP $status: $response"
}

# field NAME: prints a string member of the JSON in $response. Ids and tokens contain no quotes and no escapes, so sed can
# extract them.
field() {
    local value
    value=$(sed -n 's/.*"'"$1"'"[[:space:]]*:[[:space:]]*"\([^"]*\)".*/\1/p' <<<"$response")
    [ -n "$value" ] || fail "the response contains no $1: $response"
    printf '%s\n' "$value"
}

# read_saved FILE COMMAND: prints the content of a file that COMMAND creates.
read_saved() {
    cat "$dir/$1" 2>/dev/null || fail "$dir/$1 does not exist: run $2 first"
}

# json_string TEXT: prints the text as a JSON string. Does not escape control characters other than line ends, because a PEM
# contains no others.
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
