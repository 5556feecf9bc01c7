#!/usr/bin/env bash
# Lints and renders both charts, and checks that helm reports missing required values.
set -euo pipefail

cd "$(dirname "$0")/.."
helm=.tools/bin/helm
# Uses no cluster and no settings of the user, so that the result is the same on every machine.
export HELM_NAMESPACE=default KUBECONFIG=/dev/null
# The version of Kubernetes is set explicitly, because a helm that `go install` built assumes a very old version of
# Kubernetes.
kubernetes=(--kube-version 1.30.0)

main() {
    local chart values
    for chart in charts/*/; do
        for values in "$chart"ci/*.yaml; do
            "$helm" lint --strict --quiet "${kubernetes[@]}" "$chart" --values "$values"
            "$helm" template demo "${kubernetes[@]}" "$chart" --values "$values" >/dev/null
            echo "rendered with $values"
        done
        check_required_values "$chart"
    done
}

# check_required_values CHART: checks that rendering the chart without values fails with an error that names a missing value.
check_required_values() {
    local output
    if output=$("$helm" template demo "${kubernetes[@]}" "$1" 2>&1); then
        echo "helm rendered $1 although required values are missing" >&2
        return 1
    fi
    if ! grep -q 'is required' <<<"$output"; then
        printf 'the error of %s does not name a required value:\n%s\n' "$1" "$output" >&2
        return 1
    fi
    echo "missing required values of $1 are reported"
}

main
