#!/usr/bin/env bash
# Lints and renders both charts, and sees that what must be given is asked for.
set -euo pipefail

cd "$(dirname "$0")/.."
helm=.tools/bin/helm
# No cluster, no user's settings: the same answer on every machine.
export HELM_NAMESPACE=default KUBECONFIG=/dev/null
# Said, because helm built by `go install` takes every cluster for a very old one.
kubernetes=(--kube-version 1.30.0)

main() {
    local chart values
    for chart in charts/*/; do
        for values in "$chart"ci/*.yaml; do
            "$helm" lint --strict --quiet "${kubernetes[@]}" "$chart" --values "$values"
            "$helm" template demo "${kubernetes[@]}" "$chart" --values "$values" >/dev/null
            echo "renders: $values"
        done
        refused "$chart"
    done
}

# refused CHART: without values it must not render, and must say what is missing.
refused() {
    local said
    if said=$("$helm" template demo "${kubernetes[@]}" "$1" 2>&1); then
        echo "$1 renders although required values are missing" >&2
        return 1
    fi
    if ! grep -q 'is required' <<<"$said"; then
        printf '%s does not say what is required:\n%s\n' "$1" "$said" >&2
        return 1
    fi
    echo "asks for what is required: $1"
}

main
