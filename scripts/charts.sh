#!/usr/bin/env bash
# Lints and renders both charts, and checks that missing required values are reported.
set -euo pipefail

cd "$(dirname "$0")/.."
helm=.tools/bin/helm
# No cluster and no user settings, so that the result is the same on every machine.
export HELM_NAMESPACE=default KUBECONFIG=/dev/null
# Set explicitly, because helm built by `go install` assumes a very old Kubernetes version.
kubernetes=(--kube-version 1.30.0)

main() {
    local chart values
    for chart in charts/*/; do
        for values in "$chart"ci/*.yaml; do
            "$helm" lint --strict --quiet "${kubernetes[@]}" "$chart" --values "$values"
            "$helm" template demo "${kubernetes[@]}" "$chart" --values "$values" >/dev/null
            echo "renders: $values"
        done
        fails_without_values "$chart"
    done
}

# fails_without_values CHART: rendering without values must fail and name the missing value.
fails_without_values() {
    local output
    if output=$("$helm" template demo "${kubernetes[@]}" "$1" 2>&1); then
        echo "$1 renders although required values are missing" >&2
        return 1
    fi
    if ! grep -q 'is required' <<<"$output"; then
        printf '%s does not name the required value:\n%s\n' "$1" "$output" >&2
        return 1
    fi
    echo "reports missing required values: $1"
}

main
